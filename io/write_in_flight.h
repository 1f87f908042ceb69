// A write that goes on in the kernel while its thread does something else (io_uring, a ring of one for each object).
//
// What it is for: XFS holds a file's lock through a direct write that the caller waits for in the system call, but only
// while it is submitted where the caller does not; a buffered write to the same file, which needs that lock alone, then
// does not have to wait for the disk.
//
// Thread safety: owned by one thread. Errors: io_uring may be missing or forbidden (ENOSYS, EPERM: containers): begin()
// then fails, and nothing was written.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <span>

#include "io/result.h"

struct io_uring;

namespace ckptfs::io {

class WriteInFlight {
 public:
  WriteInFlight();
  ~WriteInFlight();
  WriteInFlight(const WriteInFlight&) = delete;
  WriteInFlight& operator=(const WriteInFlight&) = delete;

  // Makes the ring, where there is none. After success, `fd` and the memory of `data` have to stay until finish(),
  // which must be called.
  Result<> begin(int fd, std::span<const std::byte> data, off_t offset);
  // Waits. The bytes that were written, perhaps fewer than asked for.
  Result<size_t> finish();

 private:
  Result<> make_ring();
  void drop_ring();

  std::unique_ptr<io_uring> ring_;
};

}  // namespace ckptfs::io

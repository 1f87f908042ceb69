// A write that runs in the kernel while its thread does something else (io_uring, with a ring of one entry per object).
//
// Why: during a direct write in a plain system call XFS holds the file's lock until the disk has answered. With
// io_uring it holds the lock only while the write is submitted. A buffered write to the same file, which needs that
// lock too, then does not have to wait for the disk.
//
// Thread safety: one thread owns it. Errors: io_uring may be missing or forbidden (ENOSYS, EPERM, in containers). Then
// begin() fails, and nothing was written.
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

  // Makes the ring on the first call. After success, `fd` and the memory of `data` must stay valid until finish(),
  // which must be called.
  Result<> begin(int fd, std::span<const std::byte> data, off_t offset);
  // Waits. Returns the number of bytes written, which may be fewer than requested.
  Result<size_t> finish();

 private:
  Result<> make_ring();
  void drop_ring();

  std::unique_ptr<io_uring> ring_;
};

}  // namespace ckptfs::io

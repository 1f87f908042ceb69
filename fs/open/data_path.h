// Reads and writes of a handle whose data comes through the daemon.
//
// Opens with O_DIRECT may read and write at any offset, length and memory alignment, whatever the disk demands, and
// still go past the page cache below: reads into an aligned bounce that covers the range in whole blocks (and ends with
// the file's last block: an O_DIRECT read beyond it is EIO while someone extends the file), writes with their body of
// whole blocks direct, from the request's own memory where that is aligned, and head and tail buffered, to the end of
// their page, the tail while the body is in flight. Nothing here reads a block to write it back changed: the kernel
// does that under the file's own lock, so two writers that meet inside a block do not lose each other's bytes. Other
// opens are buffered on the blob.
//
// Thread safety: a DataPath may be used by any number of threads at once; it holds no lock.
// Errors: as the kernel gave them. EINVAL from O_DIRECT turns this DataPath to buffered for good (counted, logged
// once).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "fs/base/counters.h"
#include "io/aligned_buffer.h"
#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::fs {

class DataPath {
 public:
  struct Descriptors {
    io::Fd own;       // buffered, with the handle's access mode; none: `shared` is used
    int shared = -1;  // the inode's own read-only descriptor; outlives the DataPath
    io::Fd direct;    // O_DIRECT, with the handle's access mode; none for a buffered handle
  };
  // `is_only_open`: nobody else has the file open now; what is read and written past this DataPath is left as it is.
  DataPath(
      Descriptors descriptors, io::DirectAlignment alignment, Counters& counters,
      std::function<bool()> is_only_open = [] { return true; })
      : descriptors_(std::move(descriptors)),
        alignment_(alignment),
        counters_(counters),
        is_only_open_(std::move(is_only_open)) {}

  // Up to `size` bytes at `offset`, fewer only at the end of the file. In memory of the calling thread, valid until its
  // next call.
  Result<std::span<const std::byte>> read(size_t size, off_t offset);

  // The bytes written, and why not all of them were.
  struct Written {
    size_t bytes = 0;
    std::optional<Error> error;
  };
  Written write(std::span<const std::byte> data, off_t offset);

  int buffered() const { return descriptors_.own ? descriptors_.own.get() : descriptors_.shared; }
  bool is_direct() const { return descriptors_.direct && !direct_refused_.load(std::memory_order_relaxed); }

 private:
  Result<std::span<const std::byte>> read_buffered(size_t size, off_t offset);
  Result<std::span<const std::byte>> read_direct(size_t size, off_t offset);
  off_t border(off_t at) const;
  void expect_borders(off_t end, off_t request);
  Written write_in_parts(std::span<const std::byte> data, off_t offset);
  Written write_direct(std::span<const std::byte> body, off_t offset);
  Written write_body_and_tail(std::span<const std::byte> body, std::span<const std::byte> tail, off_t offset);
  bool begin_body(std::span<const std::byte> body, off_t offset, off_t end);
  std::span<const std::byte> aligned(std::span<const std::byte> body) const;
  void direct_was_refused(const char* operation);

  const Descriptors descriptors_;
  const io::DirectAlignment alignment_;
  Counters& counters_;
  const std::function<bool()> is_only_open_;
  std::atomic<bool> direct_refused_{false};
  std::atomic<off_t> unaligned_end_{0};  // where the last write ended that was not aligned
};

}  // namespace ckptfs::fs

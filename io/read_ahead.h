// Makes the kernel read a file further ahead of its reader than the usual 128 KiB, with which a reader waits for a fast
// disk half of its time. It copies nothing, waits for no page, and skips what is already in memory.
//
// It issues reads of more than 1 MiB with RWF_NOWAIT and without a buffer. They fail, with EAGAIN if the pages are not
// in memory and with EFAULT if they are, because there is no buffer. But before they fail the kernel has started
// read-ahead for a reader that asks for so much at a time: up to max_sectors_kb at once, the next part when the reader
// reaches the last one, and in large folios (mm/readahead.c). POSIX_FADV_WILLNEED would allocate single pages, at twice
// the CPU time. Before Linux 6.12 such reads fail before any read-ahead; then only the cost of the calls remains.
//
// Thread safety: one thread at a time owns it.
#pragma once

#include <cstdint>

namespace ckptfs::io {

class ReadAhead {
 public:
  static constexpr uint64_t kDistance = uint64_t{8} << 20;

  // Tells that the reader is at `position` of `fd` and will go on, but not beyond `end`. Call it again and again as the
  // reader moves. `fd` must be the same in all calls. Other reads through `fd` may make the kernel read less at once.
  void reader_is_at(int fd, uint64_t position, uint64_t end);

 private:
  uint64_t position_ = 0;  // of the reader, at the last call
  uint64_t asked_ = 0;     // read-ahead was requested up to this offset
  unsigned found_ = 0;     // how many calls in a row found the pages in memory
  bool refused_ = false;   // the file system does not support such reads
};

}  // namespace ckptfs::io

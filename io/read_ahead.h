// Has the kernel read a file ahead of whoever goes through it, further than it does by itself: 128 KiB, mostly, so that
// a reader waits for a quick disk half of its time. Nothing is copied, and no page is waited for; what is in memory
// already is passed over.
//
// How: reads of more than a MiB into no memory at all, with RWF_NOWAIT. They fail, either since nothing is there yet
// (EAGAIN) or since there is no memory (EFAULT), but only after the kernel has taken them for those of a reader who
// asks for so much at a time: it reads up to max_sectors_kb at once, the next whenever the last is reached, and in
// large folios (mm/readahead.c). POSIX_FADV_WILLNEED would take single pages, at twice the time of processors. Before
// Linux 6.12 such reads fail before anything is read ahead: then it is as without this, but for the calls.
//
// Thread safety: belongs to one thread at a time.
#pragma once

#include <cstdint>

namespace ckptfs::io {

class ReadAhead {
 public:
  static constexpr uint64_t kDistance = uint64_t{8} << 20;

  // Its reader is at `position` of `fd`, and will go on, but not beyond `end`. To be called again and again as it
  // moves. `fd`: the same from call to call. What else is read through it may make the kernel ask for less at once.
  void reader_is_at(int fd, uint64_t position, uint64_t end);

 private:
  uint64_t position_ = 0;  // of the reader, at the last call
  uint64_t asked_ = 0;     // up to here
  unsigned found_ = 0;     // how often something was there, one call after another
  bool refused_ = false;   // the file system has no such reads
};

}  // namespace ckptfs::io

// Says how far one open file is to be fetched ahead of its reader. A reader who goes on where it stopped gets twice as
// much ahead as it has read in one go, up to a limit. Requests may come a little out of order, since the kernel sends
// several at a time.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "io/mutex.h"
#include "meta/remote/chunk_reader.h"

namespace ckptfs::fs::remote_mount {

class ReadAhead {
 public:
  static constexpr uint64_t kMost = uint64_t{96} << 20;
  static constexpr uint64_t kSlack = uint64_t{8} << 20;    // how far out of order
  static constexpr uint64_t kAtOnce = uint64_t{16} << 20;  // so that requests are large

  // To be called with each read, of a file of `size` bytes. What it returns is to be fetched now; fetched_to() says how
  // far that went.
  std::optional<meta::remote::FileSpan> note(const meta::remote::FileSpan& read, uint64_t size) {
    const io::MutexLock lock(mutex_);
    const uint64_t end = read.offset + read.size;
    if (read.offset > next_ + kSlack || end + kSlack < next_) {  // it begins elsewhere
      begin_ = read.offset;
      next_ = planned_ = end;
      return std::nullopt;
    }
    next_ = std::max(next_, end);
    const uint64_t window = std::min(kMost, 2 * (next_ - std::min(begin_, next_)));
    const uint64_t from = std::max(planned_, next_), to = std::min(size, next_ + window);
    if (from >= to || (to < size && to - from < std::min(kAtOnce, window / 2))) return std::nullopt;
    planned_ = to;
    return meta::remote::FileSpan{from, to - from};
  }
  void fetched_to(uint64_t end) {
    const io::MutexLock lock(mutex_);
    planned_ = std::min(planned_, end);
  }

 private:
  io::Mutex mutex_;
  uint64_t begin_ GUARDED_BY(mutex_) = 0;    // of what is read in one go
  uint64_t next_ GUARDED_BY(mutex_) = 0;     // its end
  uint64_t planned_ GUARDED_BY(mutex_) = 0;  // up to here it is fetched
};

}  // namespace ckptfs::fs::remote_mount

#include "io/read_ahead.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ckptfs::io {

namespace {
constexpr uint64_t kWindow = uint64_t{1280} << 10;  // what the kernel takes for one request of a reader

// The page at which the kernel goes on is not missed by short strides. Long ones are for what is in memory anyhow, as
// is most probable after so many short ones, more than a window, that found something.
constexpr uint64_t kShort = uint64_t{64} << 10;
constexpr uint64_t kLong = uint64_t{1} << 20;
constexpr unsigned kMany = 32;
}  // namespace

void ReadAhead::reader_is_at(int fd, uint64_t position, uint64_t end) {
  // So much quicker than its reader it gets ahead without making it wait.
  const uint64_t moved = position - std::min(std::exchange(position_, position), position);
  const uint64_t most_calls = 4 + 2 * std::min(moved, kDistance) / kShort;
  asked_ = std::max(asked_, position);
  const uint64_t until = std::min(end, position + kDistance);
  for (uint64_t calls = 0; calls < most_calls && asked_ < until && !refused_; ++calls) {
    const iovec nowhere{nullptr, kWindow};
    const ssize_t read = ::preadv2(fd, &nowhere, 1, static_cast<off_t>(asked_), RWF_NOWAIT);
    refused_ = read >= 0 || (errno != EFAULT && errno != EAGAIN);
    if (!refused_ && errno == EFAULT) {
      asked_ += ++found_ >= kMany ? kLong : kShort;
    } else if (std::exchange(found_, 0) >= kMany) {
      asked_ -= kLong - kShort;  // what it strode over may not be there either
    } else {
      asked_ += kShort;
    }
  }
}

}  // namespace ckptfs::io

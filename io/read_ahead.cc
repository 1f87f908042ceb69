#include "io/read_ahead.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ckptfs::io {

namespace {
constexpr uint64_t kWindow = uint64_t{1280} << 10;  // the kernel's read-ahead takes this much for one request

// Short strides do not miss the marker page at which the kernel continues its read-ahead. Long strides are for pages
// that are in memory anyhow. That is most likely after kMany short strides, more than a window, found every page there.
constexpr uint64_t kShort = uint64_t{64} << 10;
constexpr uint64_t kLong = uint64_t{1} << 20;
constexpr unsigned kMany = 32;
}  // namespace

void ReadAhead::reader_is_at(int fd, uint64_t position, uint64_t end) {
  // With so many calls it gets ahead of the reader much faster than the reader moves, without making the reader wait.
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
      asked_ -= kLong - kShort;  // what the long stride skipped may not be in memory either
    } else {
      asked_ += kShort;
    }
  }
}

}  // namespace ckptfs::io

#include "io/read_limit.h"

#include <cerrno>
#include <string>

#include "io/fd.h"

namespace ckptfs::io {

Result<> ReadLimit::take(uint64_t bytes) {
  if (!reached_ && stop_ != nullptr && *stop_) reached_ = Error(ECANCELED, "the mount is ending");
  if (!reached_ && bytes > left_) {
    reached_ = Error(EFBIG, "more than " + std::to_string(most_ >> 20) + " MiB of its files would have to be read");
  }
  if (reached_) return *reached_;
  left_ -= bytes;
  return success();
}

Result<size_t> LimitedFile::read_full(std::span<std::byte> buffer, uint64_t offset) const {
  if (limit_ != nullptr) TRY(limit_->take(buffer.size()));
  return io::read_full(descriptor_, buffer, static_cast<off_t>(offset));
}

}  // namespace ckptfs::io

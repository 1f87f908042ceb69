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
  if (source_ != nullptr) return source_->read_full(buffer, offset);
  return io::read_full(descriptor_, buffer, static_cast<off_t>(offset));
}

Result<uint64_t> LimitedFile::size() const {
  if (source_ != nullptr) return source_->size();
  TRY_ASSIGN(const struct stat st, stat_fd(descriptor_));
  return static_cast<uint64_t>(st.st_size);
}

}  // namespace ckptfs::io

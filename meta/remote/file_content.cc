#include "meta/remote/file_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/fault.h"
#include "meta/remote/part.h"

namespace ckptfs::meta::remote {

Result<std::vector<io::Digest>> digests_of(const StepImage& image, size_t index) {
  const Entry& entry = image.entries()[index];
  if (entry.kind != Entry::Kind::file) return std::vector<io::Digest>();
  TRY_ASSIGN(auto digests, image.digests(index));
  if (digests.size() == entry.chunks()) return digests;
  return Error(EBADMSG, fmt::format("{}/{}: it has {} digests, and should have {}", image.tag(), entry.path,
                                    digests.size(), entry.chunks()));
}

Result<DigestsInOrder::Digests> DigestsInOrder::of(size_t index) {
  const io::MutexLock lock(mutex_);
  if (last_ && index_ == index) return last_;
  TRY_ASSIGN(auto digests, digests_of(image_, index));
  last_ = std::make_shared<const std::vector<io::Digest>>(std::move(digests));
  index_ = index;
  return last_;
}

FileContent::FileContent(const StepImage& image, DigestsInOrder& digests, std::function<void(uint64_t bytes)> throttle,
                         size_t index, uint64_t offset, uint64_t size)
    : image_(image), digests_(digests), throttle_(std::move(throttle)), index_(index), offset_(offset), size_(size) {}

io::ObjectContent FileContent::content() {
  return {size_, [this](uint64_t offset, std::span<std::byte> buffer) { return read(offset, buffer); }};
}

Result<> FileContent::read(uint64_t offset, std::span<std::byte> buffer) {
  throttle_(buffer.size());
  while (!buffer.empty()) {
    const uint64_t at = offset_ + offset, skip = at % kChunkBytes;
    TRY(load(at / kChunkBytes));
    const size_t length = std::min<uint64_t>(buffer.size(), buffer_.size() - skip);
    std::memcpy(buffer.data(), buffer_.data() + skip, length);
    buffer = buffer.subspan(length);
    offset += length;
  }
  return success();
}

Result<> FileContent::load(uint64_t chunk) {
  if (chunk == loaded_) return success();
  loaded_ = UINT64_MAX;
  TRY_ASSIGN(const auto digests, digests_.of(index_));
  const uint64_t begin = chunk * kChunkBytes;
  buffer_.resize(std::min(kChunkBytes, image_.entries()[index_].size - begin));
  TRY(image_.read(index_, begin, buffer_));
  const bool is_right = io::digest_of(buffer_) == (*digests)[chunk];
  if (!is_right && !io::fault_value("chunk_unchecked")) return differs(chunk);
  loaded_ = chunk;
  return success();
}

Error FileContent::differs(uint64_t chunk) const {
  const std::string file = image_.tag() + "/" + image_.entries()[index_].path;
  const auto current = image_.is_current();
  if (!current) return current.error();
  if (!current.value()) return Error(ESTALE, file + " has changed since it was read");
  return Error(EBADMSG, fmt::format("{}: the disk holds something else from byte {} on than its digest says: it is "
                                    "not pushed. Check the disk, and save the step again",
                                    file, chunk * kChunkBytes));
}

}  // namespace ckptfs::meta::remote

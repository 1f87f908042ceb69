#include "meta/remote/pack_content.h"

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

PackContent::PackContent(const StepImage& image, std::function<void(uint64_t bytes)> throttle,
                         std::vector<PackedChunk> chunks)
    : image_(image), throttle_(std::move(throttle)), chunks_(std::move(chunks)) {}

io::ObjectContent PackContent::content() {
  const JournalledChunk& last = chunks_.back().chunk;
  return {uint64_t{last.offset} + last.length,
          [this](uint64_t offset, std::span<std::byte> buffer) { return read(offset, buffer); }};
}

std::vector<JournalledChunk> PackContent::chunks() const {
  std::vector<JournalledChunk> chunks;
  for (const PackedChunk& packed : chunks_) chunks.push_back(packed.chunk);
  return chunks;
}

Result<> PackContent::read(uint64_t offset, std::span<std::byte> buffer) {
  throttle_(buffer.size());
  while (!buffer.empty()) {
    TRY(load(offset));
    const uint64_t skip = offset - chunks_[loaded_].chunk.offset;
    const size_t length = std::min<uint64_t>(buffer.size(), buffer_.size() - skip);
    std::memcpy(buffer.data(), buffer_.data() + skip, length);
    buffer = buffer.subspan(length);
    offset += length;
  }
  return success();
}

// Loads the chunk that has this byte of the pack.
Result<> PackContent::load(uint64_t offset) {
  const auto after =
      std::ranges::upper_bound(chunks_, offset, {}, [](const PackedChunk& packed) { return packed.chunk.offset; });
  const auto index = static_cast<size_t>(after - chunks_.begin()) - 1;
  if (index == loaded_) return success();
  loaded_ = SIZE_MAX;
  const PackedChunk& packed = chunks_[index];
  buffer_.resize(packed.chunk.length);
  TRY(image_.read(packed.entry, packed.at, buffer_));
  const bool is_right = io::digest_of(buffer_) == packed.chunk.digest;
  if (!is_right && !io::fault_value("chunk_unchecked")) return differs(packed);
  loaded_ = index;
  return success();
}

Error PackContent::differs(const PackedChunk& packed) const {
  const std::string file = image_.tag() + "/" + image_.entries()[packed.entry].path;
  const auto current = image_.is_current();
  if (!current) return current.error();
  if (!current.value()) return Error(ESTALE, file + " has changed since it was read");
  return Error(EBADMSG, fmt::format("{}: the disk holds something else from byte {} on than its digest says: it is "
                                    "not pushed. Check the disk, and save the step again",
                                    file, packed.at));
}

}  // namespace ckptfs::meta::remote

#include "meta/remote/chunk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "io/fault.h"
#include "io/log.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {
namespace {

constexpr const char* kChunksName = "chunks";
constexpr const char* kIndexName = "index";
constexpr std::string_view kIndexMagic = "ckptfs cache 1\n";
constexpr size_t kIndexEntry = sizeof(io::Digest) + 2 * sizeof(uint32_t);
constexpr uint64_t kMostCacheSlots = uint64_t{1} << 26;
constexpr size_t kDirectAlignment = 4096;  // that of any disk

Result<> refuse_other_files(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    // "lost+found" is of the file system itself, and "index.*" what replace_file() leaves when it is killed.
    if (name == kChunksName || name.starts_with(kIndexName) || name == "lost+found") continue;
    return Error(ENOTEMPTY, folder + ": it holds \"" + name + "\": a cache needs a folder of its own");
  }
  return error ? Result<>(Error(error.value(), folder + ": " + error.message())) : success();
}

}  // namespace

size_t ChunkCache::Hash::operator()(const io::Digest& digest) const {
  size_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return hash;
}

Result<std::unique_ptr<ChunkCache>> ChunkCache::open(const std::string& folder, uint64_t bytes) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return last_error(folder);
  TRY(refuse_other_files(folder));
  const uint64_t slots = std::clamp<uint64_t>(bytes / kChunkBytes, 1, kMostCacheSlots);
  std::unique_ptr<ChunkCache> cache(new ChunkCache(folder, slots));
  const std::string path = folder + "/" + kChunksName;
  TRY_ASSIGN(cache->chunks_, io::open_at(AT_FDCWD, path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  if (::flock(cache->chunks_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return last_error(path);
    return Error(EBUSY, folder + ": another mount uses this cache; give each its own");
  }
  auto direct = io::open_at(AT_FDCWD, path, O_RDONLY | O_DIRECT | O_NOFOLLOW);
  if (direct) {
    cache->direct_ = std::move(direct).value();
  } else {
    log::info("{}: chunks are read through the page cache: {}", folder, direct.error().message());
  }
  TRY(cache->read_index());
  return cache;
}

// After an unclean end there is no index. What it names beyond the end of a smaller cache is left out.
Result<> ChunkCache::read_index() {
  const std::string path = folder_ + "/" + kIndexName;
  const auto text = io::read_file(path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return last_error(path);
  TRY(io::sync_parent(path));
  const io::MutexLock lock(mutex_);
  if (text && text.value().starts_with(kIndexMagic)) {
    const std::string_view entries = std::string_view(text.value()).substr(kIndexMagic.size());
    std::vector<bool> used(slots_);
    for (size_t at = 0; at + kIndexEntry <= entries.size(); at += kIndexEntry) {
      Kept kept;
      std::memcpy(kept.digest.data(), entries.data() + at, sizeof(kept.digest));
      std::memcpy(&kept.slot, entries.data() + at + sizeof(kept.digest), sizeof(kept.slot));
      std::memcpy(&kept.length, entries.data() + at + sizeof(kept.digest) + sizeof(kept.slot), sizeof(kept.length));
      if (kept.slot >= slots_ || used[kept.slot] || kept.length > kChunkBytes || by_digest_.contains(kept.digest)) {
        continue;
      }
      used[kept.slot] = true;
      next_ = std::max<uint64_t>(next_, uint64_t{kept.slot} + 1);
      by_digest_[kept.digest] = order_.insert(order_.end(), kept);
    }
    for (uint64_t slot = 0; slot < next_; ++slot) {
      if (!used[slot]) free_.push_back(static_cast<uint32_t>(slot));
    }
  }
  if (::ftruncate(chunks_.get(), static_cast<off_t>(next_ * kChunkBytes)) == 0) return success();
  return last_error(folder_ + "/" + kChunksName);
}

Result<> ChunkCache::close() {
  const io::MutexLock lock(mutex_);
  std::string text(kIndexMagic);
  for (const Kept& kept : order_) {
    text.append(reinterpret_cast<const char*>(kept.digest.data()), sizeof(kept.digest));
    text.append(reinterpret_cast<const char*>(&kept.slot), sizeof(kept.slot));
    text.append(reinterpret_cast<const char*>(&kept.length), sizeof(kept.length));
  }
  TRY(io::fdatasync_fd(chunks_.get()));
  return io::replace_file(folder_ + "/" + kIndexName, text);
}

bool ChunkCache::has(const io::Digest& digest) const {
  const io::MutexLock lock(mutex_);
  return by_digest_.contains(digest);
}

bool ChunkCache::read(const io::Digest& digest, size_t length, std::span<std::byte> room) {
  uint32_t slot = 0;
  {
    const io::MutexLock lock(mutex_);
    const auto found = by_digest_.find(digest);
    if (found == by_digest_.end() || found->second->length != length) return false;
    slot = found->second->slot;
    order_.splice(order_.end(), order_, found->second);
  }
  const auto got = read_slot(slot, length, room);
  if (got && got.value() >= length && io::digest_of(room.first(length)) == digest) return true;
  const io::MutexLock lock(mutex_);
  const auto found = by_digest_.find(digest);
  if (found == by_digest_.end() || found->second->slot != slot) return false;  // it made room for another one
  note_failure(got ? Error(EIO, "a chunk is not what was written to it") : got.error());
  drop(found->second);
  return false;
}

Result<size_t> ChunkCache::read_slot(uint32_t slot, size_t length, std::span<std::byte> room) const {
  const auto offset = static_cast<off_t>(slot * kChunkBytes);
  if (direct_) {
    const size_t whole = (length + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    auto got = io::read_full(direct_.get(), room.first(whole), offset);
    if (got || got.error().errno_value() != EINVAL) return got;  // EINVAL: blocks are larger than pages
  }
  return io::read_full(chunks_.get(), room.first(length), offset);
}

void ChunkCache::add(const io::Digest& digest, std::span<const std::byte> bytes) {
  uint32_t slot = 0;
  {
    const io::MutexLock lock(mutex_);
    if (by_digest_.contains(digest)) return;
    const auto taken = take_slot();
    if (!taken) return;
    slot = *taken;
  }
  const auto written = [&]() -> Result<> {
    TRY(io::fault_point("chunk_cache.write"));
    return io::write_full(chunks_.get(), bytes, static_cast<off_t>(slot * kChunkBytes));
  }();
  const io::MutexLock lock(mutex_);
  if (!written) note_failure(written.error());
  if (!written || by_digest_.contains(digest)) {
    free_.push_back(slot);
    return;
  }
  by_digest_[digest] = order_.insert(order_.end(), {digest, slot, static_cast<uint32_t>(bytes.size())});
}

ChunkCache::Usage ChunkCache::usage() const {
  const io::MutexLock lock(mutex_);
  return {by_digest_.size(), slots_, failed_};
}

std::optional<uint32_t> ChunkCache::take_slot() {
  if (free_.empty() && next_ < slots_) return static_cast<uint32_t>(next_++);
  if (free_.empty() && order_.empty()) return std::nullopt;
  if (free_.empty()) drop(order_.begin());
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void ChunkCache::drop(Order::iterator kept) {
  free_.push_back(kept->slot);
  by_digest_.erase(kept->digest);
  order_.erase(kept);
}

void ChunkCache::note_failure(const Error& error) {
  if (failed_++ == 0) {
    log::warn("{}: {}; what cannot be kept there is fetched again", folder_, error.message());
  }
}

}  // namespace ckptfs::meta::remote

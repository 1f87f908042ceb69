#include "tests/io/objects/memory_store.h"

#include <algorithm>
#include <cstring>

namespace ckptfs::io::testing {

Result<> MemoryStore::enter(Fate of_it) const {
  if (of_it == Fate::refused) return Error(EAGAIN, "answers 500");
  if (of_it == Fate::missing) return Error(ENOENT, "answers 404");
  if (of_it == Fate::forbidden) return Error(EACCES, "answers 403");
  return success();
}

Result<> MemoryStore::leave(Fate of_it) {
  if (of_it == Fate::reply_lost) return Error(ECONNRESET, "the connection broke");
  return success();
}

MemoryStore::Objects MemoryStore::copy() const {
  const MutexLock lock(mutex_);
  return objects_;
}

void MemoryStore::restore(Objects objects) {
  const MutexLock lock(mutex_);
  objects_ = std::move(objects);
}

std::vector<std::string> MemoryStore::keys(const std::string& prefix) const {
  const MutexLock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, object] : objects_) {
    if (key.starts_with(prefix)) keys.push_back(key);
  }
  return keys;
}

Result<> MemoryStore::put(const std::string& key, const ObjectContent& content, PutMode mode,
                          const RequestLimits& /*limits*/) {
  TRY(check_key(key));
  ++counts_.puts;
  const Fate of_it = fate("put", key);
  TRY(enter(of_it));
  std::string text(content.size, '\0');
  TRY(content.read(0, std::as_writable_bytes(std::span(text))));
  const MutexLock lock(mutex_);
  if (mode == PutMode::make && objects_.contains(key)) return Error(EEXIST, key + " is there already");
  objects_[key] = {std::move(text), now};
  return leave(of_it);
}

Result<size_t> MemoryStore::get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                                const RequestLimits& /*limits*/) {
  ++counts_.gets;
  const Fate of_it = fate("get", key);
  TRY(enter(of_it));
  const MutexLock lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return Error(ENOENT, key + ": there is none");
  const std::string& content = found->second.content;
  const size_t begin = std::min<uint64_t>(offset, content.size());
  const size_t length = std::min(buffer.size(), content.size() - begin);
  std::memcpy(buffer.data(), content.data() + begin, length);
  TRY(leave(of_it));
  return length;
}

Result<ObjectPage> MemoryStore::list(const std::string& prefix, const std::string& token,
                                     const RequestLimits& /*limits*/) {
  ++counts_.lists;
  const Fate of_it = fate("list", prefix);
  TRY(enter(of_it));
  TRY(leave(of_it));
  const MutexLock lock(mutex_);
  ObjectPage page;
  for (const auto& [key, object] : objects_) {
    if (!key.starts_with(prefix) || key <= token) continue;
    if (page.objects.size() == 2) {
      page.next = page.objects.back().key;
      break;
    }
    page.objects.push_back({key, object.content.size(), object.made});
  }
  return page;
}

Result<> MemoryStore::remove(const std::string& key, const RequestLimits& /*limits*/) {
  ++counts_.removes;
  const Fate of_it = fate("remove", key);
  TRY(enter(of_it));
  const MutexLock lock(mutex_);
  objects_.erase(key);
  return leave(of_it);
}

Result<> MemoryStore::copy(const std::string& from, const std::string& to, uint64_t size,
                           const RequestLimits& /*limits*/) {
  ++counts_.puts;
  const Fate of_it = fate("copy", to);
  TRY(enter(of_it));
  const MutexLock lock(mutex_);
  const auto found = objects_.find(from);
  if (found == objects_.end() || found->second.content.size() != size) return Error(ENOENT, from + ": there is none");
  objects_[to] = {found->second.content, now};
  return leave(of_it);
}

Result<Upload> MemoryStore::begin_upload(const std::string& key, const RequestLimits& /*limits*/) {
  TRY(check_key(key));
  ++counts_.puts;
  const MutexLock lock(mutex_);
  const std::string id = std::to_string(++begun_);
  uploads_[id] = {"", now};
  return Upload{key, id};
}

Result<std::string> MemoryStore::put_piece(const Upload& upload, uint32_t number, uint64_t offset,
                                           const ObjectContent& content, const RequestLimits& /*limits*/) {
  ++counts_.puts;
  const Fate of_it = fate("piece", upload.key + "#" + std::to_string(number));
  TRY(enter(of_it));
  std::string text(content.size, '\0');
  TRY(content.read(0, std::as_writable_bytes(std::span(text))));
  const MutexLock lock(mutex_);
  const auto found = uploads_.find(upload.id);
  if (found == uploads_.end()) return Error(ENOENT, upload.key + ": there is no such upload");
  std::string& whole = found->second.content;
  whole.resize(std::max<size_t>(whole.size(), offset + text.size()));
  whole.replace(offset, text.size(), text);
  found->second.made = now;
  TRY(leave(of_it));
  return "tag " + std::to_string(number);
}

Result<> MemoryStore::complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                                      const RequestLimits& /*limits*/) {
  ++counts_.puts;
  const Fate of_it = fate("complete", upload.key);
  TRY(enter(of_it));
  const MutexLock lock(mutex_);
  const auto found = uploads_.find(upload.id);
  if (found == uploads_.end()) {
    const auto there = objects_.find(upload.key);
    if (there != objects_.end() && there->second.content.size() == size) return leave(of_it);
    return Error(ENOENT, upload.key + ": there is no such upload");
  }
  for (size_t at = 0; at < pieces.size(); ++at) {
    if (pieces[at] != "tag " + std::to_string(at + 1)) return Error(EPROTO, upload.key + ": InvalidPart");
  }
  if (found->second.content.size() != size) return Error(EPROTO, upload.key + ": it lacks pieces");
  objects_[upload.key] = {std::move(found->second.content), now};
  uploads_.erase(found);
  return leave(of_it);
}

Result<uint64_t> MemoryStore::end_uploads(std::chrono::seconds older_than, const RequestLimits& /*limits*/) {
  const MutexLock lock(mutex_);
  return std::erase_if(uploads_, [&](const auto& one) { return one.second.made + older_than <= now; });
}

size_t MemoryStore::uploads() const {
  const MutexLock lock(mutex_);
  return uploads_.size();
}

}  // namespace ckptfs::io::testing

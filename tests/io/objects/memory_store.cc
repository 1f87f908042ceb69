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

}  // namespace ckptfs::io::testing

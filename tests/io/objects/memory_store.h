// An object store in memory, whose tries fail as a test says. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/mutex.h"
#include "io/objects/object_store.h"

namespace ckptfs::io::testing {

class MemoryStore : public ObjectStore {
 public:
  // What becomes of a request.
  enum class Fate {
    done,
    refused,     // the server does nothing and answers 500
    reply_lost,  // the server does it, and the connection breaks
    missing,     // "there is no such object", whatever there is
    forbidden,   // "the credentials are refused"
  };

  // Asked for each try: the operation ("put", "get", "list", "remove", "copy", "piece", "complete") and the key.
  std::function<Fate(const std::string&, const std::string&)> fate = [](auto&, auto&) { return Fate::done; };

  // What time an object gets that is put now. Not while others use the store.
  std::chrono::system_clock::time_point now;
  // What a test does behind everybody's back: all objects as they are, to be put back later; their keys.
  struct Object {
    std::string content;
    std::chrono::system_clock::time_point made;
  };
  using Objects = std::map<std::string, Object>;
  Objects copy() const;
  void restore(Objects objects);
  std::vector<std::string> keys(const std::string& prefix = "") const;

  Result<> put(const std::string& key, const ObjectContent& content, PutMode mode,
               const RequestLimits& limits) override;
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const RequestLimits& limits) override;
  // Pages of two objects.
  Result<ObjectPage> list(const std::string& prefix, const std::string& token, const RequestLimits& limits) override;
  Result<> remove(const std::string& key, const RequestLimits& limits) override;
  Result<> copy(const std::string& from, const std::string& to, uint64_t size, const RequestLimits& limits) override;
  Result<Upload> begin_upload(const std::string& key, const RequestLimits& limits) override;
  Result<std::string> put_piece(const Upload& upload, uint32_t number, uint64_t offset, const ObjectContent& content,
                                const RequestLimits& limits) override;
  Result<> complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                           const RequestLimits& limits) override;
  Result<uint64_t> end_uploads(std::chrono::seconds older_than, const RequestLimits& limits) override;
  size_t uploads() const;  // that were begun, and have not ended

  // 1,000 bytes.
  Result<> check_fits(const std::string& key) const override {
    return key.size() <= 1000 ? success() : Result<>(Error(EINVAL, key + ": it is too long"));
  }
  RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  Result<> enter(Fate of_it) const;
  static Result<> leave(Fate of_it);

  const std::string url_ = "memory:";
  RequestCounts counts_;
  mutable Mutex mutex_;
  Objects objects_ GUARDED_BY(mutex_);
  std::map<std::string, Object> uploads_ GUARDED_BY(mutex_);  // by id
  uint64_t begun_ GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptfs::io::testing

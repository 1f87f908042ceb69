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

  // Asked for each try: the operation ("put", "get", "list", "remove") and the key.
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

  RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  Result<> enter(Fate of_it) const;
  static Result<> leave(Fate of_it);

  const std::string url_ = "memory:";
  RequestCounts counts_;
  mutable Mutex mutex_;
  Objects objects_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::io::testing

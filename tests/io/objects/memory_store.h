// An object store in memory, whose tries fail as a test says. Thread-safe.
#pragma once

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
  Mutex mutex_;
  std::map<std::string, std::string> objects_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::io::testing

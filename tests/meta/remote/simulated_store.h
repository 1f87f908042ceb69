// The store of a simulation, as one process sees it: with all that may happen to a request.
#pragma once

#include <string>

#include "io/objects/object_store.h"
#include "tests/meta/remote/simulation_world.h"

namespace ckptfs::meta::remote::testing {

class SimulatedStore : public io::ObjectStore {
 public:
  SimulatedStore(World& world, Actor& actor) : world_(world), actor_(actor) {}

  Result<> put(const std::string& key, const io::ObjectContent& content, io::PutMode mode,
               const io::RequestLimits& limits) override;
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const io::RequestLimits& limits) override;
  // Pages of eight objects.
  Result<io::ObjectPage> list(const std::string& prefix, const std::string& token,
                              const io::RequestLimits& limits) override;
  Result<> remove(const std::string& key, const io::RequestLimits& limits) override;

  io::RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  // What becomes of a reply: it comes, or the store around this one would try again, or it is an error.
  enum class Reply { comes, is_lost };

  Result<> begin(const char* what, const std::string& key);
  Result<Reply> reply(const std::string& key);

  World& world_;
  Actor& actor_;
  const std::string url_ = "simulated:";
  io::RequestCounts counts_;
};

}  // namespace ckptfs::meta::remote::testing

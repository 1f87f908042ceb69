// The store of a simulation, as one process sees it: with all that may happen to a request.
#pragma once

#include <string>
#include <vector>

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
  Result<> copy(const std::string& from, const std::string& to, uint64_t size,
                const io::RequestLimits& limits) override;
  Result<io::Upload> begin_upload(const std::string& key, const io::RequestLimits& limits) override;
  Result<std::string> put_piece(const io::Upload& upload, uint32_t number, uint64_t offset,
                                const io::ObjectContent& content, const io::RequestLimits& limits) override;
  Result<> complete_upload(const io::Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                           const io::RequestLimits& limits) override;
  Result<uint64_t> end_uploads(std::chrono::seconds older_than, const io::RequestLimits& limits) override;

  Result<> check_fits(const std::string& /*key*/) const override { return success(); }
  io::RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  // What becomes of a reply: it comes, or the store around this one would try again, or it is an error.
  enum class Reply { comes, is_lost };

  Result<> begin(const char* what, const std::string& key);
  Result<Reply> reply(const std::string& key);
  // An object comes to be, unless the process is dead.
  Result<> make(const std::string& key, std::string text, io::PutMode mode);

  World& world_;
  Actor& actor_;
  const std::string url_ = "simulated:";
  io::RequestCounts counts_;
};

}  // namespace ckptfs::meta::remote::testing

// Asks a store again, as long as that can help and the limits allow it, and makes certain what a lost reply left open.
//
// - Waits between two tries: 50 ms, then twice as long each time, up to 10 s, less a random half, so that many ranks do
//   not come at once.
// - A put that was to make an object may have arrived though it failed. If the next try finds an object there, what it
//   holds is compared: equal is success, else EEXIST. EEXIST at the first try is EEXIST.
// - "There is no such object" is asked again until the deadline, since servers say so while they start. Who wants to
//   know whether an object is there asks list(). Of what is copied, and of uploads, it is final: they can be sent anew.
//   So is a copy that is refused.
// - "The credentials are refused" and "there is no such bucket" are final until a request has succeeded, and then can
//   pass: servers say that, too.
// - An error of the content's own read() is none of the store's: it is returned as it is.
//
// The last error is returned, with the number of tries. Thread-safe, as the store that it asks.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "io/objects/object_store.h"

namespace ckptfs::io {

class RetryingStore : public ObjectStore {
 public:
  explicit RetryingStore(std::unique_ptr<ObjectStore> store) : store_(std::move(store)) {}

  Result<> put(const std::string& key, const ObjectContent& content, PutMode mode,
               const RequestLimits& limits) override;
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const RequestLimits& limits) override;
  Result<ObjectPage> list(const std::string& prefix, const std::string& token, const RequestLimits& limits) override;
  Result<> find_check(const std::string& key, const RequestLimits& limits) override;
  Result<> remove(const std::string& key, const RequestLimits& limits) override;
  Result<> copy(const std::string& from, const std::string& to, uint64_t size, const RequestLimits& limits) override;
  Result<Upload> begin_upload(const std::string& key, const RequestLimits& limits) override;
  Result<std::string> put_piece(const Upload& upload, uint32_t number, uint64_t offset, const ObjectContent& content,
                                const RequestLimits& limits) override;
  Result<> complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                           const RequestLimits& limits) override;
  Result<uint64_t> end_uploads(std::chrono::seconds older_than, const RequestLimits& limits) override;
  Result<uint64_t> remove_empty_folders(const std::string& prefix, std::chrono::seconds older_than,
                                        const RequestLimits& limits) override;

  Result<> check_fits(const std::string& key) const override { return store_->check_fits(key); }
  RequestCounts& counts() override { return store_->counts(); }
  const std::string& url() const override { return store_->url(); }

 private:
  enum class Missing { passes, is_final, as_refused };  // ENOENT; as_refused: final, and so is EACCES
  // Calls attempt(number of tries before) until it succeeds or there is no point in another one.
  template <class Attempt>
  auto again_and_again(const RequestLimits& limits, Attempt&& attempt, Missing missing = Missing::passes)
      -> decltype(attempt(0));
  bool may_pass(const Error& error, Missing missing) const;

  const std::unique_ptr<ObjectStore> store_;
  std::atomic<bool> has_worked_{false};
};

}  // namespace ckptfs::io

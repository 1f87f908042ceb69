// The daemon's descriptors, of which files that users hold open take one or more each. Users together get half of what
// the process may have, so that the index, saves and the daemon itself never lack one; one user but root gets half of
// that, where the mount is for several.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "io/result.h"

namespace ckptfs::fs {

class DescriptorBudget {
 public:
  explicit DescriptorBudget(bool several_users) : several_users_(several_users) {}

  // So many descriptors of one user's; given back when it is destroyed. Not longer than its budget.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), uid_(other.uid_), count_(std::exchange(other.count_, 0)) {}
    Claim& operator=(Claim&& other) noexcept;
    ~Claim();

    Result<> add(uint64_t count);

   private:
    friend class DescriptorBudget;
    Claim(DescriptorBudget& budget, uid_t uid) : budget_(&budget), uid_(uid) {}

    DescriptorBudget* budget_ = nullptr;
    uid_t uid_ = 0;
    uint64_t count_ = 0;
  };
  // EMFILE: the user holds too many; ENFILE: all users together do.
  Result<Claim> take(uid_t uid, uint64_t count);

 private:
  Result<> take_more(uid_t uid, uint64_t count);
  void give_back(uid_t uid, uint64_t count);

  const bool several_users_;
  std::mutex mutex_;
  uint64_t taken_ = 0;                           // guarded by mutex_
  std::unordered_map<uid_t, uint64_t> by_user_;  // guarded by mutex_
};

}  // namespace ckptfs::fs

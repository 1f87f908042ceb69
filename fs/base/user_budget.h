// Budgets for what the daemon holds for users: descriptors, of which each open file takes one or more, and memory. Each
// budget has a limit for all users together. If the mount is for several users, one user, except root, gets half of
// that. A user who holds no memory yet gets any amount, so that no single list of names is too long.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "io/mutex.h"
#include "io/result.h"

namespace ckptfs::fs {

class UserBudget {
 public:
  enum class First { counts, is_granted };
  // `what` is the name of what is counted, for errors. `most` tells the limit for all users.
  UserBudget(std::string what, std::function<uint64_t()> most, First first, bool several_users)
      : what_(std::move(what)), most_(std::move(most)), first_(first), several_users_(several_users) {}

  // A claim of one user's, given back when it is destroyed. It must not outlive its budget.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), uid_(other.uid_), count_(std::exchange(other.count_, 0)) {}
    Claim& operator=(Claim&& other) noexcept;
    ~Claim();

    Result<> add(uint64_t count);

   private:
    friend class UserBudget;
    Claim(UserBudget& budget, uid_t uid) : budget_(&budget), uid_(uid) {}

    UserBudget* budget_ = nullptr;
    uid_t uid_ = 0;
    uint64_t count_ = 0;
  };
  // EMFILE: the user holds too much; ENFILE: all users together do.
  Result<Claim> take(uid_t uid, uint64_t count);

 private:
  Result<> take_more(uid_t uid, uint64_t count);
  void give_back(uid_t uid, uint64_t count);

  const std::string what_;
  const std::function<uint64_t()> most_;
  const First first_;
  const bool several_users_;
  io::Mutex mutex_;
  uint64_t taken_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<uid_t, uint64_t> by_user_ GUARDED_BY(mutex_);
};

// Half of the descriptors that the process may have, so that the index, saves and the daemon itself never lack one.
class DescriptorBudget : public UserBudget {
 public:
  explicit DescriptorBudget(bool several_users);
};

// The memory of what users can make as large as they like: lists of names, and views.
class MemoryBudget : public UserBudget {
 public:
  static constexpr uint64_t kMost = uint64_t{96} << 20;

  explicit MemoryBudget(bool several_users);
};

}  // namespace ckptfs::fs

#include "fs/base/user_budget.h"

#include <sys/resource.h>

namespace ckptfs::fs {
namespace {

// Reads the limit each time, since prlimit may change it from outside.
uint64_t most_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur / 2;
}

}  // namespace

UserBudget::Claim& UserBudget::Claim::operator=(Claim&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(uid_, other.uid_);
  std::swap(count_, other.count_);
  return *this;
}

UserBudget::Claim::~Claim() {
  if (budget_ != nullptr) budget_->give_back(uid_, count_);
}

Result<> UserBudget::Claim::add(uint64_t count) {
  TRY(budget_->take_more(uid_, count));
  count_ += count;
  return success();
}

Result<UserBudget::Claim> UserBudget::take(uid_t uid, uint64_t count) {
  Claim claim(*this, uid);
  TRY(claim.add(count));
  return claim;
}

Result<> UserBudget::take_more(uid_t uid, uint64_t count) {
  const uint64_t most = most_();
  const io::MutexLock lock(mutex_);
  const auto held = by_user_.find(uid);
  const uint64_t of_user = held == by_user_.end() ? 0 : held->second;
  const bool granted = of_user == 0 && first_ == First::is_granted;
  if (!granted && several_users_ && uid != 0 && of_user + count > most / 2) {
    return Error(EMFILE, "user " + std::to_string(uid) + " holds " + std::to_string(of_user) + ' ' + what_ +
                             " of the daemon's, of at most " + std::to_string(most / 2));
  }
  if (!granted && taken_ + count > most) {
    return Error(ENFILE, "users hold " + std::to_string(taken_) + ' ' + what_ + " of the daemon's, of at most " +
                             std::to_string(most) + "; close files");
  }
  taken_ += count;
  by_user_[uid] = of_user + count;
  return success();
}

void UserBudget::give_back(uid_t uid, uint64_t count) {
  const io::MutexLock lock(mutex_);
  taken_ -= count;
  const auto held = by_user_.find(uid);
  if (held == by_user_.end()) return;  // of a claim that was refused
  held->second -= count;
  if (held->second == 0) by_user_.erase(held);
}

DescriptorBudget::DescriptorBudget(bool several_users)
    : UserBudget("descriptors", most_descriptors, First::counts, several_users) {}

MemoryBudget::MemoryBudget(bool several_users)
    : UserBudget(
          "bytes of memory", [] { return kMost; }, First::is_granted, several_users) {}

}  // namespace ckptfs::fs

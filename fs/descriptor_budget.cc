#include "fs/descriptor_budget.h"

#include <sys/resource.h>

#include <string>

namespace ckptfs::fs {
namespace {

// Asked each time: it may be changed from outside (prlimit).
uint64_t most_for_users() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur / 2;
}

}  // namespace

DescriptorBudget::Claim& DescriptorBudget::Claim::operator=(Claim&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(uid_, other.uid_);
  std::swap(count_, other.count_);
  return *this;
}

DescriptorBudget::Claim::~Claim() {
  if (budget_ != nullptr) budget_->give_back(uid_, count_);
}

Result<> DescriptorBudget::Claim::add(uint64_t count) {
  TRY(budget_->take_more(uid_, count));
  count_ += count;
  return success();
}

Result<DescriptorBudget::Claim> DescriptorBudget::take(uid_t uid, uint64_t count) {
  Claim claim(*this, uid);
  TRY(claim.add(count));
  return claim;
}

Result<> DescriptorBudget::take_more(uid_t uid, uint64_t count) {
  const uint64_t most = most_for_users();
  const std::lock_guard lock(mutex_);
  if (taken_ + count > most) {
    return Error(ENFILE, "users hold " + std::to_string(taken_) + " descriptors of the daemon's, of at most " +
                             std::to_string(most) + "; close files, or raise the daemon's RLIMIT_NOFILE");
  }
  const auto held = by_user_.find(uid);
  const uint64_t of_user = held == by_user_.end() ? 0 : held->second;
  if (several_users_ && uid != 0 && of_user + count > most / 2) {
    return Error(EMFILE, "user " + std::to_string(uid) + " holds " + std::to_string(of_user) +
                             " descriptors of the daemon's, of at most " + std::to_string(most / 2));
  }
  taken_ += count;
  by_user_[uid] = of_user + count;
  return success();
}

void DescriptorBudget::give_back(uid_t uid, uint64_t count) {
  const std::lock_guard lock(mutex_);
  taken_ -= count;
  const auto held = by_user_.find(uid);
  if (held == by_user_.end()) return;  // of a claim that was refused
  held->second -= count;
  if (held->second == 0) by_user_.erase(held);
}

}  // namespace ckptfs::fs

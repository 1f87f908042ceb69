#include "fs/steps/save_history.h"

#include <algorithm>
#include <utility>

namespace ckptfs::fs {

void SaveHistory::add(TakenSave save) {
  const io::MutexLock lock(mutex_);
  saves_.push_back(std::move(save));
  if (saves_.size() > kMost) saves_.pop_front();
}

void SaveHistory::made(meta::InodeNumber folder) {
  const io::MutexLock lock(mutex_);
  // Inode numbers ascend, so the smallest are the oldest.
  if (made_.size() >= kMostMade) {
    std::vector<meta::InodeNumber> numbers;
    for (const auto& [number, when] : made_) numbers.push_back(number);
    std::ranges::nth_element(numbers, numbers.begin() + kMostMade / 2);
    std::erase_if(made_, [middle = numbers[kMostMade / 2]](const auto& one) { return one.first < middle; });
  }
  made_[folder] = meta::wall_time(meta::now());
}

void SaveHistory::complete(meta::InodeNumber step, const std::string& path, meta::WallTime changed) {
  const io::MutexLock lock(mutex_);
  const auto known = made_.find(step);
  if (known == made_.end()) return;
  const meta::WallTime began = known->second;
  made_.erase(known);
  if (changed < began) return;  // the clock was set back
  saves_.push_back({path, true, changed, changed - began, 0, {}});
  if (saves_.size() > kMost) saves_.pop_front();
}

void SaveHistory::saved_by_ranks(MovedByRanks save) {
  const io::MutexLock lock(mutex_);
  save_by_ranks_ = std::move(save);
}

void SaveHistory::loaded_by_ranks(MovedByRanks load) {
  const io::MutexLock lock(mutex_);
  load_by_ranks_ = std::move(load);
}

std::optional<MovedByRanks> SaveHistory::last_save_by_ranks() const {
  const io::MutexLock lock(mutex_);
  return save_by_ranks_;
}

std::optional<MovedByRanks> SaveHistory::last_load_by_ranks() const {
  const io::MutexLock lock(mutex_);
  return load_by_ranks_;
}

std::vector<TakenSave> SaveHistory::all() const {
  const io::MutexLock lock(mutex_);
  return {saves_.begin(), saves_.end()};
}

}  // namespace ckptfs::fs

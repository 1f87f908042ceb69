#include "fs/steps/save_history.h"

#include <utility>

namespace ckptfs::fs {

void SaveHistory::add(TakenSave save) {
  const io::MutexLock lock(mutex_);
  saves_.push_back(std::move(save));
  if (saves_.size() > kMost) saves_.pop_front();
}

void SaveHistory::made(meta::InodeNumber folder) {
  const io::MutexLock lock(mutex_);
  if (made_.size() >= kMostMade) made_.erase(made_.begin());
  made_[folder] = meta::wall_time(meta::now());
}

void SaveHistory::complete(meta::InodeNumber step, const std::string& path, meta::WallTime changed) {
  io::MutexLock lock(mutex_);
  const auto known = made_.find(step);
  if (known == made_.end()) return;
  const meta::WallTime began = known->second;
  made_.erase(known);
  if (changed < began) return;  // the clock was set back
  lock.unlock();
  add({path, true, changed, changed - began, 0, {}});
}

void SaveHistory::moved_by_ranks(Way way, MovedByRanks step) {
  const io::MutexLock lock(mutex_);
  by_ranks_[way] = std::move(step);
}

std::optional<MovedByRanks> SaveHistory::last_by_ranks(Way way) const {
  const io::MutexLock lock(mutex_);
  const auto last = by_ranks_.find(way);
  return last == by_ranks_.end() ? std::nullopt : std::optional(last->second);
}

std::vector<TakenSave> SaveHistory::all() const {
  const io::MutexLock lock(mutex_);
  return {saves_.begin(), saves_.end()};
}

}  // namespace ckptfs::fs

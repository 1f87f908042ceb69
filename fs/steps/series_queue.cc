#include "fs/steps/series_queue.h"

#include <algorithm>

namespace ckptfs::fs {
namespace {
constexpr int kRestFactor = 50;
}  // namespace

void SeriesQueue::add(meta::InodeNumber series, uint32_t owner) {
  if (const auto known = owner_of_.find(series); known != owner_of_.end()) {
    if (known->second == owner) return;
    remove(series);
  }
  if (owner_of_.empty()) unseen_.insert(series);
  owner_of_[series] = owner;
  owners_[owner].series.insert(series);
}

void SeriesQueue::remove(meta::InodeNumber series) {
  const auto known = owner_of_.find(series);
  if (known == owner_of_.end()) return;
  const auto owner = owners_.find(known->second);
  owner->second.series.erase(series);
  if (owner->second.series.empty()) owners_.erase(owner);
  owner_of_.erase(known);
  note_seen(series);
}

void SeriesQueue::note_seen(meta::InodeNumber series) {
  if (unseen_.erase(series) == 0 || !unseen_.empty()) return;
  ++rounds_;
  for (const auto& [one, owner] : owner_of_) unseen_.insert(one);
}

std::optional<meta::InodeNumber> SeriesQueue::next(Clock::time_point now) {
  if (owners_.empty()) ++rounds_;
  auto at = owners_.upper_bound(last_);
  for (size_t asked = 0; asked < owners_.size(); ++asked, ++at) {
    if (at == owners_.end()) at = owners_.begin();
    const auto series = next_of(at->second, now);
    if (!series) continue;
    last_ = at->first;
    return series;
  }
  return std::nullopt;
}

std::optional<meta::InodeNumber> SeriesQueue::next_of(Owner& owner, Clock::time_point now) const {
  if (!owner.in_round) {
    if (now < owner.due) return std::nullopt;
    owner.in_round = true;
    owner.took = {};
    owner.left.assign(owner.series.begin(), owner.series.end());
  }
  while (!owner.left.empty()) {
    const meta::InodeNumber series = owner.left.front();
    owner.left.pop_front();
    if (owner.series.contains(series)) return series;
  }
  owner.in_round = false;
  owner.ended = now;
  owner.due = now + (owner.woken ? short_rest(owner) : std::max(interval_, owner.took * kRestFactor));
  owner.woken = false;
  return std::nullopt;
}

SeriesQueue::Clock::duration SeriesQueue::short_rest(const Owner& owner) const {
  return owner.took < interval_ ? Clock::duration::zero() : owner.took;
}

void SeriesQueue::done(meta::InodeNumber series, Clock::duration took, bool unfinished) {
  if (const auto owner = owner_of_.find(series); owner != owner_of_.end()) {
    Owner& whose = owners_[owner->second];
    whose.took += took;
    if (unfinished) whose.left.push_back(series);
  }
  if (unfinished) return;
  note_seen(series);
}

void SeriesQueue::wake() {
  for (auto& [uid, owner] : owners_) {
    if (owner.in_round) {
      owner.woken = true;  // what has happened may concern a series that was looked at before
    } else {
      owner.due = std::min(owner.due, owner.ended + short_rest(owner));
    }
  }
}

}  // namespace ckptfs::fs

#include "fs/kernel/notifications.h"

#include <algorithm>

namespace ckptfs::fs {

namespace {
// A next request may have waited for the folder's lock. Within this time it reaches the daemon, and holds the folder.
constexpr std::chrono::milliseconds kUntilNextRequest{20};
}  // namespace

void Notifications::start() {
  {
    const io::MutexLock lock(mutex_);
    running_ = true;
  }
  thread_ = std::thread([this] { run(); });
}

void Notifications::stop() {
  {
    const io::MutexLock lock(mutex_);
    running_ = false;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Notifications::queue(Change change) {
  {
    const io::MutexLock lock(mutex_);
    if (!running_ || !queued_.insert(change).second) return;
    queue_.push_back(std::move(change));
  }
  wake_.notify_all();
}

void Notifications::wait_until_told(std::chrono::milliseconds time) {
  const io::MutexLock lock(mutex_);
  wake_.wait_for(mutex_, time, [this]() REQUIRES(mutex_) { return !running_ || (!telling_ && !has_change_to_tell()); });
}

void Notifications::hold(meta::InodeNumber folder) {
  const io::MutexLock lock(mutex_);
  if (++held_[folder].requests == 0) held_.erase(folder);
}

void Notifications::release(meta::InodeNumber folder) {
  {
    const io::MutexLock lock(mutex_);
    Held& held = held_[folder];
    --held.requests;
    held.until = Clock::now() + kUntilNextRequest;
  }
  wake_.notify_all();
}

bool Notifications::may_be_told(const Change& change) {
  if (change.name.empty()) return true;
  const auto held = held_.find(change.inode);
  return held == held_.end() || (held->second.requests <= 0 && held->second.until <= Clock::now());
}

// Is there a change that may be told now or in a moment?
bool Notifications::has_change_to_tell() {
  return std::ranges::any_of(queue_, [this](const Change& change) REQUIRES(mutex_) {
    const auto held = change.name.empty() ? held_.end() : held_.find(change.inode);
    return held == held_.end() || held->second.requests <= 0;
  });
}

// Waits until a change may be told, or something else has happened.
void Notifications::wait_for_change() {
  std::erase_if(held_, [](const auto& held) { return held.second.requests == 0 && held.second.until <= Clock::now(); });
  const auto free = std::ranges::find_if(held_, [](const auto& held) { return held.second.requests == 0; });
  if (free == held_.end()) {
    wake_.wait(mutex_);
  } else {
    wake_.wait_until(mutex_, free->second.until);
  }
}

void Notifications::run() {
  io::MutexLock lock(mutex_);
  while (running_) {
    const auto next =
        std::ranges::find_if(queue_, [this](const Change& change) REQUIRES(mutex_) { return may_be_told(change); });
    if (next == queue_.end()) {
      wait_for_change();
      continue;
    }
    const Change change = std::move(*next);
    queue_.erase(next);
    queued_.erase(change);
    telling_ = true;
    lock.unlock();
    tell_(change);
    add(counters_.notifications);
    lock.lock();
    telling_ = false;
    if (!has_change_to_tell()) wake_.notify_all();
  }
}

}  // namespace ckptfs::fs

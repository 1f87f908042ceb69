#include "fs/kernel/notifications.h"

#include <algorithm>

namespace ckptfs::fs {

namespace {
// A next request may have waited for the folder's lock. Within this time it reaches the daemon, and holds the folder.
constexpr std::chrono::milliseconds kUntilNextRequest{20};
}  // namespace

void Notifications::start() {
  {
    const std::lock_guard lock(mutex_);
    running_ = true;
  }
  thread_ = std::thread([this] { run(); });
}

void Notifications::stop() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Notifications::queue(Change change) {
  {
    const std::lock_guard lock(mutex_);
    if (!running_ || !queued_.insert(change).second) return;
    queue_.push_back(std::move(change));
  }
  wake_.notify_all();
}

void Notifications::wait_until_told(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, time, [this] { return !running_ || (!telling_ && !has_change_to_tell()); });
}

void Notifications::hold(meta::InodeNumber folder) {
  const std::lock_guard lock(mutex_);
  if (++held_[folder].requests == 0) held_.erase(folder);
}

void Notifications::release(meta::InodeNumber folder) {
  {
    const std::lock_guard lock(mutex_);
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
  return std::ranges::any_of(queue_, [this](const Change& change) {
    const auto held = change.name.empty() ? held_.end() : held_.find(change.inode);
    return held == held_.end() || held->second.requests <= 0;
  });
}

// Waits until a change may be told, or something else has happened.
void Notifications::wait_for_change(std::unique_lock<std::mutex>& lock) {
  std::erase_if(held_, [](const auto& held) { return held.second.requests == 0 && held.second.until <= Clock::now(); });
  const auto free = std::ranges::find_if(held_, [](const auto& held) { return held.second.requests == 0; });
  if (free == held_.end()) {
    wake_.wait(lock);
  } else {
    wake_.wait_until(lock, free->second.until);
  }
}

void Notifications::run() {
  std::unique_lock lock(mutex_);
  while (running_) {
    const auto next = std::ranges::find_if(queue_, [this](const Change& change) { return may_be_told(change); });
    if (next == queue_.end()) {
      wait_for_change(lock);
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

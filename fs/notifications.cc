#include "fs/notifications.h"

namespace ckptfs::fs {

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
  wake_.wait_for(lock, time, [this] { return !running_ || (queue_.empty() && !telling_); });
}

void Notifications::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return !running_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Change change = std::move(queue_.front());
    queue_.pop_front();
    queued_.erase(change);
    telling_ = true;
    lock.unlock();
    tell_(change);
    add(counters_.notifications);
    lock.lock();
    telling_ = false;
    if (queue_.empty()) wake_.notify_all();
  }
}

}  // namespace ckptfs::fs

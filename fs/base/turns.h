// Lets a few work at a time, in the order in which they came: a lock that some may hold.
//
// Thread safety: all of it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace ckptfs::fs {

class Turns {
 public:
  explicit Turns(uint64_t at_once) : at_once_(at_once) {}

  void lock() {
    std::unique_lock lock(mutex_);
    const uint64_t mine = came_++;
    left_again_.wait(lock, [this, mine] { return mine < left_ + at_once_; });
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      ++left_;
    }
    left_again_.notify_all();
  }

 private:
  const uint64_t at_once_;
  std::mutex mutex_;
  std::condition_variable left_again_;
  uint64_t came_ = 0;  // guarded by mutex_
  uint64_t left_ = 0;  // guarded by mutex_
};

}  // namespace ckptfs::fs

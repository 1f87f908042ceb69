// Lets a few work at a time, in the order in which they came: a lock that some may hold.
//
// Thread safety: all of it.
#pragma once

#include <cstdint>

#include "io/mutex.h"

namespace ckptfs::fs {

class Turns {
 public:
  explicit Turns(uint64_t at_once) : at_once_(at_once) {}

  void lock() {
    io::MutexLock lock(mutex_);
    const uint64_t mine = came_++;
    left_again_.wait(mutex_, [this, mine]() REQUIRES(mutex_) { return mine < left_ + at_once_; });
  }
  void unlock() {
    {
      const io::MutexLock lock(mutex_);
      ++left_;
    }
    left_again_.notify_all();
  }

 private:
  const uint64_t at_once_;
  io::Mutex mutex_;
  io::CondVar left_again_;
  uint64_t came_ GUARDED_BY(mutex_) = 0;
  uint64_t left_ GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptfs::fs

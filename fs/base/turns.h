// Lets a few work at a time, in the order in which they came: a lock that some may hold. Work here takes much memory:
// whoever leaves gives back to the system what malloc has free. Otherwise each of its heaps would keep as much as the
// largest work in it took, and with it what earlier work left between what is still in use.
//
// Thread safety: all of it.
#pragma once

#include <malloc.h>

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
    if (::mallinfo2().fordblks > kMuch) ::malloc_trim(0);
    {
      const io::MutexLock lock(mutex_);
      ++left_;
    }
    left_again_.notify_all();
  }

 private:
  static constexpr size_t kMuch = size_t{16} << 20;  // a trim takes milliseconds

  const uint64_t at_once_;
  io::Mutex mutex_;
  io::CondVar left_again_;
  uint64_t came_ GUARDED_BY(mutex_) = 0;
  uint64_t left_ GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptfs::fs

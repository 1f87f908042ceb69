// Work for users that may take long. Each user's work runs on threads of its own, a few at a time and in order. So
// nobody waits for what another user has asked for, and nobody has more than their share.
//
// Thread safety: all of it. Lock: mutex_, then Tasks'; never held while work runs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>

#include "fs/base/tasks.h"
#include "io/mutex.h"

namespace ckptfs::fs {

class UserLanes {
 public:
  static constexpr size_t kAtOnce = 4;

  // Its threads are `tasks`, which are waited for there. `at_once`: so many of each user's.
  explicit UserLanes(Tasks& tasks, size_t at_once = kAtOnce) : tasks_(tasks), at_once_(at_once) {}

  // EAGAIN: the user has no thread, and there is none to be had.
  Result<> start(uint32_t user, std::function<void()> work);

 private:
  struct User {
    std::deque<std::function<void()>> waiting GUARDED_BY(&UserLanes::mutex_);
    size_t threads GUARDED_BY(&UserLanes::mutex_) = 0;
  };

  void serve(uint32_t user);

  Tasks& tasks_;
  const size_t at_once_;
  io::Mutex mutex_;
  std::unordered_map<uint32_t, User> users_ GUARDED_BY(mutex_);  // those who have work
};

}  // namespace ckptfs::fs

#include "fs/base/user_lanes.h"

#include <utility>

namespace ckptfs::fs {

Result<> UserLanes::start(uint32_t user, std::function<void()> work) {
  const io::MutexLock lock(mutex_);
  User& lanes = users_[user];
  lanes.waiting.push_back(std::move(work));
  if (lanes.threads == at_once_) return success();
  auto started = tasks_.start([this, user] { serve(user); });
  if (started) {
    ++lanes.threads;
  } else if (lanes.threads == 0) {  // if the user has a thread, that thread takes the work
    users_.erase(user);
    return started;
  }
  return success();
}

void UserLanes::serve(uint32_t user) {
  io::MutexLock lock(mutex_);
  User& lanes = users_.at(user);  // stays while it has threads
  while (!lanes.waiting.empty()) {
    const auto work = std::move(lanes.waiting.front());
    lanes.waiting.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
  if (--lanes.threads == 0) users_.erase(user);
}

}  // namespace ckptfs::fs

#include "fs/open/privilege_watch.h"

#include <chrono>
#include <ctime>
#include <thread>

namespace ckptfs::fs {

void PrivilegeWatch::begin(meta::InodeNumber inode, const timespec& mtime) {
  const io::MutexLock lock(mutex_);
  watched_.emplace(inode, mtime);  // the earlier mtime stays
  count_.store(watched_.size(), std::memory_order_release);
}

void PrivilegeWatch::end(meta::InodeNumber inode) {
  if (count_.load(std::memory_order_acquire) == 0) return;
  const io::MutexLock lock(mutex_);
  watched_.erase(inode);
  count_.store(watched_.size(), std::memory_order_release);
}

std::optional<timespec> PrivilegeWatch::since(meta::InodeNumber inode) const {
  if (count_.load(std::memory_order_acquire) == 0) return std::nullopt;
  const io::MutexLock lock(mutex_);
  const auto found = watched_.find(inode);
  return found == watched_.end() ? std::nullopt : std::optional(found->second);
}

void wait_for_next_tick(const timespec& mtime) {
  constexpr int kLongestTick = 10;  // in milliseconds: a kernel with HZ=100
  for (int waited = 0; waited <= kLongestTick; ++waited) {
    timespec clock{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &clock);
    const bool past = clock.tv_sec > mtime.tv_sec || (clock.tv_sec == mtime.tv_sec && clock.tv_nsec > mtime.tv_nsec);
    if (past || mtime.tv_sec > clock.tv_sec + 1) return;  // a write sets an mtime of the future back
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace ckptfs::fs

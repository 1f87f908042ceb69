// The outcome of the last control of each series or step, for the xattr user.ckptfs.last_error. Kept in memory.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "io/mutex.h"
#include "io/result.h"
#include "meta/types.h"

namespace ckptfs::fs {

class LastErrors {
 public:
  // Remembers the result of a control that `uid` asked for. Success erases the earlier error.
  void remember(meta::InodeNumber inode, uint32_t uid, const Result<>& result) {
    const io::MutexLock lock(mutex_);
    errors_.erase(inode);
    if (result) return;
    // A user who may make folders can make as many series as there are inodes.
    constexpr size_t kMostErrors = 4096;
    constexpr size_t kMostWords = 1024;
    if (errors_.size() >= kMostErrors) errors_.erase(errors_.begin());
    errors_[inode] = {result.error().message().substr(0, kMostWords), uid};
  }
  // Its words may name what only `uid` may see: nobody else is told, but root.
  std::optional<std::string> of(meta::InodeNumber inode, uint32_t asking) const {
    const io::MutexLock lock(mutex_);
    const auto error = errors_.find(inode);
    if (error == errors_.end()) return std::nullopt;
    const bool may_see = asking == 0 || asking == error->second.uid;
    return may_see ? std::optional(error->second.words) : std::nullopt;
  }
  // The inode is gone.
  void forget(meta::InodeNumber inode) {
    const io::MutexLock lock(mutex_);
    errors_.erase(inode);
  }

 private:
  struct LastError {
    std::string words;
    uint32_t uid = 0;
  };

  mutable io::Mutex mutex_;
  std::unordered_map<meta::InodeNumber, LastError> errors_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs

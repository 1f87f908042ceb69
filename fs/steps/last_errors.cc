#include "fs/steps/last_errors.h"

namespace ckptfs::fs {

void LastErrors::remember(meta::InodeNumber inode, uint32_t uid, const Result<>& result) {
  const io::MutexLock lock(mutex_);
  errors_.erase(inode);
  if (result) return;
  // A user who may make folders can make as many series as there are inodes.
  constexpr size_t kMostErrors = 4096;
  constexpr size_t kMostWords = 1024;
  if (errors_.size() >= kMostErrors) errors_.erase(errors_.begin());
  errors_[inode] = {result.error().message().substr(0, kMostWords), uid};
}

std::optional<std::string> LastErrors::of(meta::InodeNumber inode, uint32_t asking) const {
  const io::MutexLock lock(mutex_);
  const auto error = errors_.find(inode);
  if (error == errors_.end()) return std::nullopt;
  const bool may_see = asking == 0 || asking == error->second.uid;
  return may_see ? std::optional(error->second.words) : std::nullopt;
}

void LastErrors::forget(meta::InodeNumber inode) {
  const io::MutexLock lock(mutex_);
  errors_.erase(inode);
}

}  // namespace ckptfs::fs

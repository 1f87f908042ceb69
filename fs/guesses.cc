#include "fs/guesses.h"

#include <algorithm>

namespace ckptfs::fs {

using std::chrono::steady_clock;

void Guesses::opened(pid_t thread, meta::InodeNumber inode) {
  const std::lock_guard lock(mutex_);
  reading_[thread].push_back(inode);
}

void Guesses::closed(pid_t thread, meta::InodeNumber inode) {
  const std::lock_guard lock(mutex_);
  const auto at = reading_.find(thread);
  if (at == reading_.end()) return;
  std::vector<meta::InodeNumber>& inodes = at->second;
  const auto last = std::find(inodes.rbegin(), inodes.rend(), inode);
  if (last != inodes.rend()) inodes.erase(std::next(last).base());
  if (inodes.empty()) reading_.erase(at);
}

std::optional<meta::InodeNumber> Guesses::find(pid_t thread, const std::string& name,
                                               const std::function<std::string(meta::InodeNumber)>& name_of) const {
  std::vector<meta::InodeNumber> inodes;
  {
    const std::lock_guard lock(mutex_);
    const auto reading = reading_.find(thread);
    if (reading == reading_.end()) return std::nullopt;
    const auto disappointment = disappointments_.find(name);
    if (disappointment != disappointments_.end() && steady_clock::now() - disappointment->second < kForget) {
      return std::nullopt;
    }
    inodes = reading->second;
  }
  const auto found =
      std::find_if(inodes.rbegin(), inodes.rend(), [&](meta::InodeNumber inode) { return name_of(inode) == name; });
  if (found == inodes.rend()) return std::nullopt;
  return *found;
}

void Guesses::disappointed(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (disappointments_.size() >= kMaximumNames) disappointments_.clear();
  disappointments_[name] = steady_clock::now();
}

}  // namespace ckptfs::fs

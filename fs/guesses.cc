#include "fs/guesses.h"

#include <sys/stat.h>

#include <algorithm>

#include "fs/control/permission.h"

namespace ckptfs::fs {

using meta::Caller;
using meta::InodeNumber;
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

bool Guesses::is_disappointment(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = disappointments_.find(name);
  return found != disappointments_.end() && steady_clock::now() - found->second < kForget;
}

std::optional<InodeNumber> Guesses::find(InodeNumber folder, const std::string& name, const Caller& writer) const {
  if (is_disappointment(name)) return std::nullopt;
  const auto reading = writer.pid != 0 ? find_reading(writer.pid, name) : std::nullopt;
  return reading ? reading : find_neighbour(folder, name, writer);
}

// The last it opened.
std::optional<InodeNumber> Guesses::find_reading(pid_t thread, const std::string& name) const {
  std::vector<InodeNumber> inodes;
  {
    const std::lock_guard lock(mutex_);
    const auto reading = reading_.find(thread);
    if (reading == reading_.end()) return std::nullopt;
    inodes = reading->second;
  }
  const auto found =
      std::find_if(inodes.rbegin(), inodes.rend(), [&](InodeNumber inode) { return name_of_(inode) == name; });
  if (found == inodes.rend()) return std::nullopt;
  return *found;
}

std::optional<InodeNumber> Guesses::find_neighbour(InodeNumber folder, const std::string& name,
                                                   const Caller& writer) const {
  // From the new file up to its step.
  std::vector<std::string> path{name};
  std::optional<InodeNumber> at;
  while (!at) {
    const auto record = tree_.inode(folder);
    if (!record || record.value().parent == 0 || path.size() > kDeepest) return std::nullopt;
    const InodeNumber parent = record.value().parent;
    const auto above = tree_.inode(parent);
    if (!above) return std::nullopt;
    if ((above.value().flags & meta::kSeries) != 0) {
      at = previous_step(parent, folder);
      if (!at) return std::nullopt;
    } else {
      path.push_back(name_of_(folder));
      folder = parent;
    }
  }
  // And from the step before down again, as the writer might go.
  const Credentials credentials{writer.uid, writer.gid, {}};
  for (auto part = path.rbegin(); part != path.rend(); ++part) {
    const auto record = tree_.inode(*at);
    if (!record || !record.value().is_dir() || !may_access(credentials, record.value(), kSearch)) return std::nullopt;
    const auto next = tree_.child(*at, *part);
    if (!next) return std::nullopt;
    at = next.value();
  }
  const auto record = tree_.inode(*at);
  if (!record || !record.value().is_regular() || !may_access(credentials, record.value(), kRead)) return std::nullopt;
  return at;
}

// Inode numbers tell the order in which directories were made.
std::optional<InodeNumber> Guesses::previous_step(InodeNumber series, InodeNumber step) const {
  const auto steps = tree_.list(series);
  if (!steps) return std::nullopt;
  std::optional<InodeNumber> previous;
  for (const meta::DirectoryEntry& entry : steps.value()) {
    if (S_ISDIR(entry.type) && entry.inode < step && (!previous || entry.inode > *previous)) previous = entry.inode;
  }
  return previous;
}

void Guesses::disappointed(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (disappointments_.size() >= kMaximumNames) disappointments_.clear();
  disappointments_[name] = steady_clock::now();
}

}  // namespace ckptfs::fs

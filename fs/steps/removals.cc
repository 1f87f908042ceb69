#include "fs/steps/removals.h"

#include <algorithm>
#include <cerrno>

#include "io/log.h"

namespace ckptfs::fs {
namespace {
constexpr size_t kNamesAtOnce = 1024;            // in one change of the index, which others wait for
constexpr std::chrono::seconds kPause{5};        // after a failure
constexpr std::chrono::seconds kUntilFreed{10};  // longer than the reaper's rounds take
}  // namespace

void Removals::start() {
  const io::MutexLock lock(mutex_);
  directories_.assign(store_.unpurged().begin(), store_.unpurged().end());
  thread_.start([this] { run(); }, io::BackgroundThread::Priority::low);
}

Result<> Removals::remove(meta::InodeNumber parent, const std::string& name, meta::InodeNumber expected,
                          const std::string& why) {
  TRY(tree_.take_out(parent, name, expected, why));
  notifications_.name_changed(parent, name);
  notifications_.attributes_changed(parent);
  empty({expected});
  return tree_.sync();
}

void Removals::empty(const std::vector<meta::InodeNumber>& directories) {
  const io::MutexLock lock(mutex_);
  if (directories_.empty()) thread_.wake();  // else the thread works, or pauses after a failure
  directories_.insert(directories_.end(), directories.begin(), directories.end());
  last_ = std::chrono::steady_clock::now();
}

void Removals::dropped(const std::vector<meta::Dropped>& files) {
  for (const meta::Dropped& file : files) {
    if (file.last_name) {
      files_.taken_out(file.inode);
    } else {
      notifications_.attributes_changed(file.inode);  // its count of links
    }
  }
}

size_t Removals::waiting() const {
  const io::MutexLock lock(mutex_);
  return directories_.size();
}

// Files that somebody has open keep their space for as long as that one likes. So the answer is yes for a limited time
// only.
bool Removals::is_freeing() const {
  const io::MutexLock lock(mutex_);
  const auto since = std::chrono::steady_clock::now() - last_;
  return since < kUntilFreed || (!directories_.empty() && since < 30 * kUntilFreed);
}

// Empties a directory before the directories that are taken out of it.
void Removals::run() {
  std::string after;  // the last name that was taken out of the first directory
  while (!thread_.is_stopping()) {
    io::MutexLock lock(mutex_);
    const meta::InodeNumber directory = directories_.empty() ? 0 : directories_.front();
    lock.unlock();
    if (directory == 0) {
      thread_.wait();
      continue;
    }
    const auto done = empty_next(directory, after);
    const bool gone = !done && is_gone(done.error());
    if (!done && !gone) {
      log::error("what was removed (inode {}) is not emptied yet, trying again: {}", directory, done.error().message());
    }
    lock.lock();
    if (!done || done.value()) after.clear();
    if (gone || (done && done.value())) directories_.pop_front();
    if (!done && !gone) std::rotate(directories_.begin(), directories_.begin() + 1, directories_.end());
    last_ = std::chrono::steady_clock::now();
    lock.unlock();
    if (!done && !gone) thread_.wait_for(kPause);
  }
}

Result<bool> Removals::empty_next(meta::InodeNumber directory, std::string& after) {
  TRY_ASSIGN(meta::Tree::Purged purged, tree_.purge(directory, after, kNamesAtOnce));
  if (purged.missing != 0) {
    log::error("inode {}, which was removed: {} names in it led to no inode", directory, purged.missing);
  }
  dropped(purged.files);
  {
    const io::MutexLock lock(mutex_);
    directories_.insert(directories_.end(), purged.directories.begin(), purged.directories.end());
  }
  if (purged.done) files_.taken_out(directory);
  after = std::move(purged.last);
  return purged.done;
}

}  // namespace ckptfs::fs

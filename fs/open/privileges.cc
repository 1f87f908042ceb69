#include "fs/open/privileges.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "io/fault.h"
#include "io/lease.h"
#include "io/log.h"

namespace ckptfs::fs {
namespace {

// The mode without the bits. sgid on a file that its group cannot execute stays if the writer is in that group.
uint32_t without_privileges(uint32_t mode, bool in_group) {
  uint32_t result = mode & ~static_cast<uint32_t>(S_ISUID);
  if ((mode & S_IXGRP) != 0 || !in_group) result &= ~static_cast<uint32_t>(S_ISGID);
  return result & 07777u;
}

bool is_same_time(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

// Waits, a few milliseconds at most, until the clock that kernels before 6.13 stamp writes with has gone past this
// mtime: a write from then on changes it.
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

}  // namespace

bool has_privileges(uint32_t mode) { return (mode & (S_ISUID | S_ISGID)) != 0; }

Result<> Privileges::clear(InodeNumber inode, const meta::Caller& caller) {
  if (caller.uid == 0) return success();
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(inode));
  if (record.is_dir() || !has_privileges(record.mode)) return success();
  meta::AttributeChange change;
  change.mode = without_privileges(record.mode, caller.gid == record.gid);
  TRY(io::fault_point("privileges.clear"));
  TRY(tree_.change_attributes(inode, change));
  TRY(io::fault_point("privileges.cleared"));
  notifications_.attributes_changed(inode);
  return success();
}

Result<> Privileges::before_write(InodeNumber inode, const meta::Caller& caller, bool had_privileges) {
  return had_privileges || watched_since(inode) ? clear(inode, caller) : success();
}

void Privileges::clear_if_written(InodeNumber inode) {
  const auto since = watched_since(inode);
  if (!since) return;
  const bool goes_on = can_be_written(inode);  // before its mtime is read: who closes now has written before
  const auto attributes = tree_.attributes(inode);
  if (!attributes) return unwatch(inode, *since);
  const bool same = is_same_time(attributes.value().stat.st_mtim, *since);
  if (same && goes_on) return;
  constexpr uint32_t kAnybody = UINT32_MAX;  // nobody knows who wrote
  if (const auto cleared = same ? success() : clear(inode, {kAnybody, kAnybody, 0}); !cleared) {
    log::error("{}: suid and sgid stay, though it was written to: {}", tree_.path_of(inode), cleared.error().message());
  }
  unwatch(inode, *since);  // only now: whoever asks meanwhile must not be told of bits that go
}

Result<> Privileges::clear_by_setattr(InodeNumber inode, const meta::Caller& caller, bool new_size,
                                      meta::AttributeChange& change) const {
  const bool new_owner = change.uid || change.gid;
  if (change.mode || (!new_owner && !new_size)) return success();
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(inode));
  if (record.is_dir() || !has_privileges(record.mode)) return success();
  change.mode = without_privileges(record.mode, new_owner || caller.gid == record.gid);
  return success();
}

Result<> Privileges::change_attributes(InodeNumber inode, const meta::AttributeChange& change) {
  const bool gives_privileges = change.mode && has_privileges(*change.mode);
  if (gives_privileges) TRY(watch(inode));
  auto changed = tree_.change_attributes(inode, change);
  if (gives_privileges) clear_if_written(inode);
  return changed;
}

Result<> Privileges::watch(InodeNumber inode) {
  TRY_ASSIGN(const meta::Attributes attributes, tree_.attributes(inode));
  if (!attributes.record.is_live_file()) return success();
  if (can_be_written(inode)) wait_for_next_tick(attributes.stat.st_mtim);
  const io::MutexLock lock(mutex_);
  watched_[inode] = attributes.stat.st_mtim;
  count_.store(watched_.size(), std::memory_order_release);
  return success();
}

// If the probe fails, nobody knows.
bool Privileges::can_be_written(InodeNumber inode) const {
  if (files_.open_for_writing(inode)) return true;
  const auto blob = tree_.open_blob(inode, O_RDONLY);
  const auto written = blob ? io::has_writer(blob.value().get()) : Result<bool>(blob.error());
  return !written || written.value();
}

void Privileges::forget(InodeNumber inode) {
  if (const auto since = watched_since(inode)) unwatch(inode, *since);
}

// Whoever gives the file the bits again meanwhile begins another watch, which stays.
void Privileges::unwatch(InodeNumber inode, const timespec& since) {
  const io::MutexLock lock(mutex_);
  const auto found = watched_.find(inode);
  if (found != watched_.end() && is_same_time(found->second, since)) watched_.erase(found);
  count_.store(watched_.size(), std::memory_order_release);
}

std::optional<timespec> Privileges::watched_since(InodeNumber inode) const {
  if (count_.load(std::memory_order_acquire) == 0) return std::nullopt;
  const io::MutexLock lock(mutex_);
  const auto found = watched_.find(inode);
  return found == watched_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace ckptfs::fs

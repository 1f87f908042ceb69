// Files that got suid or sgid while somebody had them open for writing. A write has to clear these bits
// (Filesystem::clear_privileges), and the daemon does not see a write that bypasses it. So the file's mtime from before
// it got the bits is kept. Another mtime later tells that the file was written to. It is asked for when the file's
// attributes are asked for, and at the last close for writing. That is soon enough, since a file that is open for
// writing cannot be executed.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <optional>
#include <unordered_map>

#include "io/mutex.h"
#include "meta/types.h"

namespace ckptfs::fs {

class PrivilegeWatch {
 public:
  // Before the bits are set.
  void begin(meta::InodeNumber inode, const timespec& mtime);
  void end(meta::InodeNumber inode);
  // The mtime it began with; none: it is not watched. Costs nothing while nothing is.
  std::optional<timespec> since(meta::InodeNumber inode) const;

 private:
  std::atomic<size_t> count_{0};  // of watched_
  mutable io::Mutex mutex_;
  std::unordered_map<meta::InodeNumber, timespec> watched_ GUARDED_BY(mutex_);
};

// Waits, a few milliseconds at most, until the clock that kernels before 6.13 stamp writes with has gone past this
// mtime: a write from then on changes it.
void wait_for_next_tick(const timespec& mtime);

}  // namespace ckptfs::fs

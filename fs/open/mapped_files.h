// Files that a mapping may still change though its descriptor is closed. In passthrough mode the kernel tells nobody of
// that: it maps the blob itself, and sends the RELEASE when the descriptor is closed. While that may be so, the kernel
// caches none of the file's attributes.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), never held during a probe.
#pragma once

#include <atomic>
#include <unordered_set>

#include "io/mutex.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs {

class MappedFiles {
 public:
  explicit MappedFiles(const meta::Tree& tree) : tree_(tree) {}

  // Before an open for writing counts as ended. `descriptor`: of its blob, O_RDONLY; the daemon has no other one open
  // for writing on behalf of that open.
  void closed(meta::InodeNumber inode, int descriptor);
  // May attributes that were read a moment ago be out of date by now?
  bool may_have_changed(meta::InodeNumber inode, const meta::InodeRecord& record);

 private:
  const meta::Tree& tree_;
  std::atomic<size_t> count_{0};  // of files_
  io::Mutex mutex_;
  std::unordered_set<meta::InodeNumber> files_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs

// Removal of whole directories. The name goes at once, in one durable change (Tree::take_out). What was below it is
// removed behind, in pieces (Tree::purge), on a thread of its own. A directory without a name that still has entries is
// one that is being emptied: the next mount finds it so and goes on.
//
// The kernel is told of the top entry only. The inodes below it are unreachable for it, and each is reaped as soon as
// nothing has it open (OpenFileTable::taken_out).
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "fs/kernel/notifications.h"
#include "fs/open/open_files.h"
#include "io/background_thread.h"
#include "io/mutex.h"
#include "io/result.h"
#include "meta/store/store.h"
#include "meta/types.h"

namespace ckptfs::fs {

class Removals {
 public:
  Removals(meta::Store& store, OpenFileTable& files, Notifications& notifications)
      : store_(store), tree_(store.tree()), files_(files), notifications_(notifications) {}

  void start();
  void stop() { thread_.stop(); }

  // Removes the directory `expected`, durably on return. Files of it that somebody has open stay until they are closed.
  // EPERM: it is a pinned step. ENOENT: something else has that name now.
  // `why`: for who watches the series.
  Result<> remove(meta::InodeNumber parent, const std::string& name, meta::InodeNumber expected,
                  const std::string& why);
  // The directories were taken out of the tree, durably or not. They are emptied behind.
  void empty(const std::vector<meta::InodeNumber>& directories);
  // These files have lost a name.
  void dropped(const std::vector<meta::Dropped>& files);
  // How many directories have not been emptied yet.
  size_t waiting() const;
  // May what was removed not have been freed yet? Blobs go a moment after their last name.
  bool is_freeing() const;

 private:
  void run();
  Result<bool> empty_next(meta::InodeNumber directory, std::string& after);

  meta::Store& store_;
  meta::Tree& tree_;
  OpenFileTable& files_;
  Notifications& notifications_;
  mutable io::Mutex mutex_;
  std::deque<meta::InodeNumber> directories_ GUARDED_BY(mutex_);   // the first is being emptied
  std::chrono::steady_clock::time_point last_ GUARDED_BY(mutex_);  // when one was removed or emptied
  io::BackgroundThread thread_;
};

}  // namespace ckptfs::fs

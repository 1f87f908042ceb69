// suid and sgid of files, and what clears them. A change of a file's content clears them, unless root makes it. The
// kernel leaves that to the daemon (FUSE_HANDLE_KILLPRIV_V2). Content changes
//   - by a write that the daemon serves: before_write(). An open for writing of a file that has the bits is served by
//     the daemon (fs/open/open_modes.h, case 3).
//   - by a write that bypasses the daemon, of a file that got the bits while somebody could write to it. The daemon
//     does not see that write. So it keeps the file's mtime from before the file got the bits: the file is *watched*.
//     Another mtime later tells that the file was written to. The daemon compares when it is asked for the file's
//     attributes, and at the last close for writing. That is soon enough: a file that is open for writing cannot be
//     executed, and the kernel caches no attributes of a file with the bits, so it asks for them before it executes
//     the file. A descriptor of the blob (fs/control/blob_commands.h) or a mapping may outlive the last close. The
//     lease probe finds both, and the file is watched while there is one.
//   - by truncation, allocation, a copied range, or a blob that is handed out for writing: clear(), clear_by_setattr().
// A change of the owner or the group clears the bits as well, root's change, too: clear_by_setattr().
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <time.h>

#include <atomic>
#include <optional>
#include <unordered_map>

#include "fs/kernel/notifications.h"
#include "fs/open/open_files.h"
#include "io/mutex.h"
#include "io/result.h"
#include "meta/tree/tree.h"
#include "meta/types.h"

namespace ckptfs::fs {

// Has the mode suid or sgid?
bool has_privileges(uint32_t mode);

class Privileges {
 public:
  Privileges(meta::Tree& tree, const OpenFileTable& files, Notifications& notifications)
      : tree_(tree), files_(files), notifications_(notifications) {}

  // `caller` changes the content, or has changed it. The mode of a file that is being written must not stay as it was:
  // a failure is an error.
  Result<> clear(InodeNumber inode, const meta::Caller& caller);
  // `had_privileges`: when the file was opened for this writer.
  Result<> before_write(InodeNumber inode, const meta::Caller& caller, bool had_privileges);
  // Before the attributes are told, and after the last close for writing. Costs nothing while no file is watched. Ends
  // the watch once nobody can write any more.
  void clear_if_written(InodeNumber inode);
  void forget(InodeNumber inode);  // the file goes

  // Adds to `change` what it clears, if it sets the owner or the group, or goes with a new size.
  Result<> clear_by_setattr(InodeNumber inode, const meta::Caller& caller, bool new_size,
                            meta::AttributeChange& change) const;
  // Carries out `change`. If that gives the file suid or sgid while somebody can write to it, it is watched from
  // before.
  Result<> change_attributes(InodeNumber inode, const meta::AttributeChange& change);

 private:
  Result<> watch(InodeNumber inode);
  void unwatch(InodeNumber inode, const timespec& since);
  // Is it open for writing, or its blob, of which the mount need not know?
  bool can_be_written(InodeNumber inode) const;
  std::optional<timespec> watched_since(InodeNumber inode) const;

  meta::Tree& tree_;
  const OpenFileTable& files_;
  Notifications& notifications_;
  std::atomic<size_t> count_{0};  // of watched_
  mutable io::Mutex mutex_;
  std::unordered_map<InodeNumber, timespec> watched_ GUARDED_BY(mutex_);  // the mtimes
};

}  // namespace ckptfs::fs

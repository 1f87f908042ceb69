// What the operations of the mount work on: the store below, the tables above, and the few rules that several
// operations share. One for each mount; libfuse's user data points to it.
//
// Thread safety: the members are safe each on its own; `modes` and `session` are set before the first request.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "fs/adoptions.h"
#include "fs/control_xattrs.h"
#include "fs/counters.h"
#include "fs/handles.h"
#include "fs/mapped_files.h"
#include "fs/mount.h"
#include "fs/notifications.h"
#include "fs/open_files.h"
#include "fs/open_modes.h"
#include "fs/privilege_watch.h"
#include "fs/removals.h"
#include "fs/rotation.h"
#include "fs/save_history.h"
#include "fs/step_facts.h"
#include "fs/tasks.h"
#include "fs/turns.h"
#include "fs/user_budget.h"
#include "fs/user_lanes.h"
#include "fs/views/view_file.h"
#include "fs/views/views.h"
#include "fs/write_errors.h"
#include "meta/caretaker.h"
#include "meta/store.h"
#include "meta/tree.h"

namespace ckptfs::fs {

static_assert(sizeof(fuse_ino_t) >= sizeof(meta::InodeNumber), "inode numbers are libfuse's own");
static_assert(FUSE_ROOT_ID == meta::kRootInode, "the root has the number that FUSE demands");

// The daemon alone changes names and attributes, and tells the kernel: what the kernel caches holds for a day.
inline constexpr double kLongTimeout = 86400.0;

class Filesystem {
 public:
  Filesystem(const MountOptions& mount_options, meta::Store& mounted_store);

  const MountOptions options;
  meta::Store& store;
  meta::Tree& tree;
  Counters counters;
  OpenModes modes;
  fuse_session* session = nullptr;
  std::string socket_path;       // of the control socket; set before that answers
  std::string http_address;      // where the page is; set before anything answers; empty: nowhere
  DescriptorBudget descriptors;  // before all that hold claims of it
  MemoryBudget memory;           // likewise
  Turns readings;                // of all that a step holds: each takes memory
  Notifications notifications;
  WriteErrors write_errors;
  OpenFileTable files;
  mutable MappedFiles mapped_files;
  Adoptions adoptions;
  Handles<Handle> handles;
  Handles<DirectoryHandle> directories;
  Tasks tasks;
  UserLanes lanes;
  views::Views views;
  ViewFiles view_files;
  Handles<ViewHandle> view_handles;
  ControlXattrs control;
  PrivilegeWatch privileges;
  meta::Caretaker caretaker;
  StepFactsFinder step_facts;
  Removals removals;
  Rotation rotation;
  SaveHistory saves;
  std::atomic<bool> leaving{false};  // no request of the kernel is served any more: nothing is to be waited for
  std::mutex allocating;  // so that space is not promised twice: held while it is checked for and allocated; a leaf

  // How long the kernel may cache these attributes. A live file's, while a write to it may bypass the daemon, not at
  // all.
  double attribute_timeout(const meta::Attributes& attributes) const;
  // As the user is to see them: a file that is being adopted ends where it was written to.
  struct stat shown(const meta::Attributes& attributes) const;
  fuse_entry_param entry_of(const meta::Attributes& attributes) const;

  // After an unlink, rmdir or overwriting rename.
  void dropped(const meta::Dropped& dropped);

  // A write, allocation or write-back of `inode` failed: counted, logged, kept for write_error.
  void write_failed(meta::InodeNumber inode, WriteFailure what, const Error& error);

  // A change of the content by one who may not keep suid and sgid clears them; the kernel leaves that to us
  // (FUSE_HANDLE_KILLPRIV_V2). The mode of a file that is being written must not stay as it was: a failure is an error.
  Result<> clear_privileges(meta::InodeNumber inode, const meta::Caller& caller);
  // Likewise for writes past the daemon to a file that is watched: to be called before its attributes are told.
  void clear_privileges_if_written(meta::InodeNumber inode);
  // Before a file gets suid or sgid.
  Result<> watch_privileges(meta::InodeNumber inode);

  // Has the kernel read and write by itself what `descriptor` is of; the backing id to tell it when such a file is
  // opened, 0 where this mount has no passthrough. A refusal is counted and logged here.
  Result<int> begin_passthrough(int descriptor);
  // No open file has this backing id any more.
  void end_passthrough(int backing_id);

  // fdatasync of an open file's blob through its shared descriptor; a failure is recorded for every handle open now.
  Result<> sync_data(OpenFile& file, int descriptor);

  // As seen in the kernel, where it can tell: by a mapping whose descriptor is closed, too, and no more when a close
  // has returned. `blob`: the file's, O_RDONLY.
  Result<views::Writers> writers_of(meta::InodeNumber inode, int blob) const;

  // Blocks that the other files open for writing now will need, for Tree::prepare_writing.
  uint64_t owed_by_others(meta::InodeNumber inode) const;

 private:
  OpenFileTable::Environment environment();
};

}  // namespace ckptfs::fs

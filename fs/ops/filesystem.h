// What the operations of the mount work on: the store below, the tables above, and the few rules that several
// operations share. One for each mount; libfuse's user data points to it.
//
// Thread safety: the members are safe each on its own; `modes` and `kernel` are set before the first request.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <memory>
#include <string>

#include "fs/adopt/adopter.h"
#include "fs/base/counters.h"
#include "fs/base/log_limit.h"
#include "fs/base/mount_options.h"
#include "fs/base/tasks.h"
#include "fs/base/turns.h"
#include "fs/base/user_budget.h"
#include "fs/base/user_lanes.h"
#include "fs/kernel/kernel_channel.h"
#include "fs/kernel/notifications.h"
#include "fs/open/backing_ids.h"
#include "fs/open/file_sync.h"
#include "fs/open/mapped_files.h"
#include "fs/open/open_files.h"
#include "fs/open/open_modes.h"
#include "fs/open/privileges.h"
#include "fs/open/write_errors.h"
#include "fs/ops/handles.h"
#include "fs/remote/remotes.h"
#include "fs/steps/last_errors.h"
#include "fs/steps/removals.h"
#include "fs/steps/resume_watch.h"
#include "fs/steps/rotation.h"
#include "fs/steps/save_history.h"
#include "fs/steps/saver.h"
#include "fs/steps/set_aside.h"
#include "fs/steps/step_facts.h"
#include "fs/steps/step_writers.h"
#include "fs/steps/thinner.h"
#include "fs/views/view_file.h"
#include "fs/views/views.h"
#include "io/mutex.h"
#include "meta/care/maintenance.h"
#include "meta/store/store.h"
#include "meta/tree/tree.h"

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
  KernelChannel kernel;
  BackingIds backing_ids;
  std::string socket_path;       // of the control socket; set before that answers
  std::string http_address;      // where the page is; set before anything answers; empty: nowhere
  DescriptorBudget descriptors;  // before all that hold claims of it
  MemoryBudget memory;           // likewise
  Turns readings;                // of all that a step holds: each takes memory
  Notifications notifications;
  WriteErrors write_errors;
  LastErrors last_errors;
  LogLimit log_limit;
  SaveHistory saves;
  PushStates pushes;
  StepWriters writers;
  ResumeWatch resumes;
  OpenFileTable files;
  mutable MappedFiles mapped_files;
  Adopter adopter;
  FileSync file_sync;
  Handles<Handle> handles;
  Handles<DirectoryHandle> directories;
  Tasks tasks;
  UserLanes lanes;
  UserLanes syncs;                      // those of fsync, apart from what else the user has asked for
  std::atomic<unsigned> syncs_here{0};  // on threads that serve requests
  views::Views views;
  ViewFiles view_files;
  Handles<ViewHandle> view_handles;
  Privileges privileges;
  meta::Maintenance maintenance;
  StepFactsFinder step_facts;
  Abandonment abandonment;
  SetAside set_aside;
  Removals removals;
  Thinner thinner;
  Saver saver;
  Rotation rotation;
  Remotes remotes;
  std::atomic<bool> leaving{false};  // no request of the kernel is served any more: nothing is to be waited for
  io::Mutex allocating;  // so that space is not promised twice: held while it is checked for and allocated; a leaf

  // How long the kernel may cache these attributes. A live file's, while a write to it may bypass the daemon, not at
  // all.
  double attribute_timeout(const meta::Attributes& attributes) const;
  fuse_entry_param entry_of(const meta::Attributes& attributes) const;

  // EROFS: the store is mounted read-only, or its mount point was made so. The kernel then refuses changes through the
  // mount; whoever changes something by the socket asks this.
  Result<> check_writable() const;
  // A step was saved or committed, or the rules have changed: rotation and the remotes look again.
  void look_again();
  // After an unlink, rmdir or overwriting rename.
  void dropped(const meta::Dropped& dropped);

  // The sum of the COW reserves of all other files that are open for writing now, for Tree::prepare_writing.
  uint64_t cow_reserve_of_others(meta::InodeNumber inode) const;

 private:
  OpenFileTable::Environment environment();
};

}  // namespace ckptfs::fs

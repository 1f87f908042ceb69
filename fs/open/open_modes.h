// How an open of a regular file is served. All cases are listed here. The decision for one open is choose_way() in
// fs/ops/open.cc, which asks OpenModes::must_be_served(). What the opens of one file share: fs/open/open_files.h.
//
// A mount has one of two modes. At its start op_init() (the option, the kernel) and choose_open_modes() (a probe) in
// fs/mount/mount.cc choose it:
//   - *passthrough mode*: every regular file that is open has one backing id, and the kernel reads and writes the blob
//     by itself. These data bypass the daemon.
//   - *direct mode*: no file has a backing id, and the daemon serves each read and write. It is chosen where
//     passthrough is switched off, or where the kernel has none for this process and the file system of the store
//     (before Linux 6.9, without CAP_SYS_ADMIN, on a stacked file system).
//
// In passthrough mode the daemon serves these opens all the same:
//   1. with O_DIRECT, where the device wants memory or offsets aligned more strictly than DeepSpeed's are
//      (io::DirectAlignment::harmful). DeepSpeed reads into unaligned buffers and ignores the EINVAL, so it would train
//      on garbage. `-o odirect=raw` passes them on.
//   2. for writing, of a swap file while the store is short of space (Tree::short_of_space). Only the writer would see
//      the ENOSPC, and DeepSpeed does not look.
//   3. for writing, of a file with suid or sgid. A write has to clear these bits, and the kernel leaves that to a
//      daemon which would not see the write (fs/open/privileges.h).
//   4. for writing, of a file that was just made or emptied, and shares the blocks of what it will probably hold
//      (fs/adopt/inline_block_dedup.h). Not with O_DIRECT, O_SYNC, O_DSYNC or O_APPEND, and not O_RDWR where the file
//      is open elsewhere.
//   5. for writing, of a file of which another open is served by the daemon and may be read by splice
//      (OpenFile::spliced). The kernel splices through its page cache. It drops what it has there of a write that we
//      serve, not of one that bypasses us.
//   6. each open of a file whose backing id the kernel refused, until the last close of the file.
//
// In cases 1 to 5 the answer carries the file's backing id *and* the flag direct_io: reads and writes of this open come
// to the daemon, its mappings go to the blob, and other opens are not disturbed. In case 6, and in direct mode, there
// is no backing id, and the answer carries direct_io alone. `ckptfs status --json` counts the opens of each kind.
//
// Files of views are opened in fs/ops/views.cc. One that shares the blocks of its step is opened as in passthrough
// mode, and case 1 applies. Any other is read by the daemon and cached by the kernel, without direct_io
// (fs/views/view_file.h).
//
// *Direct* means three things in this code. *Direct mode* is that of a mount, see above. *direct_io* is FUSE's flag of
// one open: the kernel caches nothing and asks the daemon. *O_DIRECT* is the caller's flag: past the page cache of the
// file system below. The `direct` descriptor of a DataPath is the third.
//
// Values only; set before the first request, then read by any thread.
#pragma once

#include <fcntl.h>

#include <string>

#include "fs/base/mount_options.h"
#include "io/aligned_buffer.h"
#include "meta/types.h"

namespace ckptfs::fs {

struct OpenModes {
  bool passthrough = false;
  std::string reason;  // why, or why not, for the log and `ckptfs status`
  OdirectOption odirect = OdirectOption::safe;
  io::DirectAlignment alignment;  // of the store's file system

  // Must the daemon serve an open of a file that has a backing id? Cases 1 to 3.
  bool must_be_served(int flags, const meta::InodeRecord& record, bool short_of_space) const;

  // What the daemon keeps to itself when it reads and writes directly: never less than a sector, whatever is reported.
  io::DirectAlignment own_alignment() const;
};

inline bool opens_for_writing(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

}  // namespace ckptfs::fs

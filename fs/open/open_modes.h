// How opens are served (docs/architecture.md, "Open modes"): decided once for the mount, and for each open.
//
// On a mount in passthrough mode data goes from the caller to the blob, past the daemon. Some opens have to come
// through the daemon all the same: they carry the file's backing id and direct_io together. On other mounts every open
// is direct. Values only; set before the first request, then read by any thread.
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

  // Must an open of a file that has a backing id come through the daemon?
  bool through_daemon(int flags, const meta::InodeRecord& record, bool short_of_space) const;

  // What the daemon keeps to itself when it reads and writes directly: never less than a sector, whatever is reported.
  io::DirectAlignment own_alignment() const;
};

inline bool opens_for_writing(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

// Are there bits that a write by another than root may have to clear (suid, sgid)?
bool has_privileges(uint32_t mode);
// The mode after such a write. sgid on a file that its group cannot execute stays if the writer is in that group.
uint32_t without_privileges(uint32_t mode, bool in_group);

}  // namespace ckptfs::fs

// Finds out who keeps a mount busy: processes that use a file, a folder or a mapping of it, and mount namespaces
// (containers) that have the mount, too. Reads /proc and asks the file system itself nothing, so that a daemon that
// hangs does not hang the search. Stateless.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

struct Holder {
  pid_t pid = 0;
  std::string command;
  std::string path;  // as the process sees it
  std::string how;   // "open", "working directory", "root", "mapped", "mounted"
};

// Finds at most `limit` holders, one for each process and path.
std::vector<Holder> find_holders(const MountEntry& mount, size_t limit);

// Finds where the file system is mounted: in this mount namespace (pid 0), and in others (pid: a process in it). `path`
// is the mountpoint there. The daemon serves as long as one of these mounts is left.
std::vector<Holder> find_copies(const MountEntry& mount, size_t limit);

}  // namespace ckptfs::fs::cli

// Who keeps a mount busy: processes with a file, a folder or a mapping of it in use, and mount namespaces (containers)
// that have it too. Looks through /proc; asks the file
// system itself nothing, so that a daemon that hangs does not hang the search. Stateless.
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

// At most `limit`, one for each process and path.
std::vector<Holder> find_holders(const MountEntry& mount, size_t limit);

// Where the file system is mounted, in this mount namespace (pid 0) and in others (a process of each), as the
// mountpoint there. Each keeps the daemon serving.
std::vector<Holder> find_copies(const MountEntry& mount, size_t limit);

}  // namespace ckptfs::fs::cli

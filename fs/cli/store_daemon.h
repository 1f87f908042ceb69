// Finds the daemon that has a store, from outside: by the lock that it holds, and by /proc. Asks the daemon nothing.
// Stateless.
#pragma once

#include <optional>
#include <string>

#include "fs/cli/daemon_probe.h"

namespace ckptfs::fs::cli {

struct StoreDaemon {
  DaemonHandle handle;
  bool killed = false;   // by SIGKILL: it no longer runs, but the kernel may not have ended it yet
  bool leaving = false;  // it no longer serves, and writes everything down
};

// None: no daemon has the store or its image, or this user may not see the daemon.
std::optional<StoreDaemon> daemon_of_store(const std::string& store);

// The name of a daemon that no longer serves (PR_SET_NAME).
inline constexpr const char* kLeavingName = "ckptfs-leaving";

// A killed daemon cannot end while one of its threads waits in the kernel for the lock of a folder, and a request to
// the daemon holds that lock. Aborts the connections of such daemons, so that the requests fail. Otherwise everything
// that looks at such a mount would wait, too; and after `umount -l` nothing else would end these requests.
void release_hung_mounts();

}  // namespace ckptfs::fs::cli

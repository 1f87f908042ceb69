// The daemon that has a store, as it looks from outside: by the lock that it holds and by /proc, without a question to
// it. Stateless.
#pragma once

#include <optional>
#include <string>

#include "fs/cli/daemon_probe.h"

namespace ckptfs::fs::cli {

struct StoreDaemon {
  DaemonHandle handle;
  bool killed = false;   // by SIGKILL: it runs no more, though the kernel may not have taken it away yet
  bool leaving = false;  // it serves nobody any more, and writes everything down
};

// None: nobody has the store (or its image), or nobody that this user may see.
std::optional<StoreDaemon> daemon_of_store(const std::string& store);

// What a daemon calls itself from when it serves nobody any more (PR_SET_NAME).
inline constexpr const char* kLeavingName = "ckptfs-leaving";

// Fails what waits for daemons that were killed and cannot end, since a thread of theirs waits in the kernel for the
// lock of a folder that a request to the daemon holds. Without it whatever looks at such a mount waits, too.
void release_hung_mounts();

}  // namespace ckptfs::fs::cli

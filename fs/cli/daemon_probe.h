// Finds the process behind a mount and waits for its end, without ever waiting for a daemon that hangs.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>

#include "io/fd.h"
#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

// A handle on the daemon, from before the unmount, so that its number can mean no other process.
struct DaemonHandle {
  pid_t pid = 0;
  io::Fd process;  // pidfd
};

// None: no such process is a ckptfs here.
std::optional<DaemonHandle> handle_on(pid_t pid);

struct DaemonProbe {
  bool dead = false;                   // the kernel says so (ENOTCONN)
  std::optional<DaemonHandle> daemon;  // where it answered
};

// Asks the mount's status for the pid, in a child that is given up after a few seconds (a thread that waits for a hung
// FUSE daemon cannot be ended).
DaemonProbe probe_daemon(const MountEntry& mount);

// Returns true when the process has ended. After a second it asks `still_waiting` once whether to go on; false: it did
// not.
bool wait_for_end(const DaemonHandle& daemon, const std::function<bool()>& still_waiting);

}  // namespace ckptfs::fs::cli

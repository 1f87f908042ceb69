// Finds the process behind a mount and waits for its end, without ever waiting for a daemon that hangs.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>

#include "io/fd.h"
#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

// A handle on the daemon, taken before the unmount, so that the pid cannot come to mean another process.
struct DaemonHandle {
  pid_t pid = 0;
  io::Fd process;  // pidfd
};

// None: there is no such process here, or it is no ckptfs.
std::optional<DaemonHandle> handle_on(pid_t pid);

struct DaemonProbe {
  bool dead = false;                   // the kernel says that it is dead (ENOTCONN)
  std::optional<DaemonHandle> daemon;  // none: it did not answer
};

// Asks the daemon for its pid, and gives up after some seconds.
DaemonProbe probe_daemon(const MountEntry& mount);

// Waits for the process to end, and returns true when it has. After a second calls `still_waiting` once, and returns
// false if that says no. A process of which the kernel keeps a thread back (fs/kernel/notifications.h) has ended, too,
// when all else of it has gone for some seconds.
bool wait_for_end(const DaemonHandle& daemon, const std::function<bool()>& still_waiting);

}  // namespace ckptfs::fs::cli

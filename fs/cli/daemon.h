// The process behind a mount: its start, its life and its end.
//
// A mount by an ordinary user differs in these ways. It has no passthrough and no image. Other users may enter it only
// with `allow_other`. Its control socket lies in a folder of the user's. It is unmounted by fusermount3 (io/unmount.h).
#pragma once

#include <functional>

#include "fs/cli/mount_plan.h"

namespace ckptfs::fs::cli {

// Called once: with success when the mount is there, or with the reason why it is not.
using StartReport = std::function<void(const Result<>&)>;

// Mounts the image, if there is one, and the store. Reports. Serves until the mount is unmounted, or until SIGTERM,
// SIGINT or SIGHUP. Then takes everything down. Returns the exit code. To be called only once in a process.
int serve(const MountPlan& plan, const StartReport& report);

// Forks a process that runs `body` as a daemon: in its own session, in folder /, without the caller's descriptors, and
// with stdio on /dev/null once it has reported success. Waits for the report. Returns kSuccess, or prints the error and
// returns kFailed. To be called while the process has one thread.
int daemonize(const std::string& name, const std::function<int(const StartReport&)>& body);

}  // namespace ckptfs::fs::cli

// The process behind a mount: its start, its life and its end.
//
// A mount by an ordinary user differs in four places: it has no passthrough and no images, it is for other users only
// where `allow_other` asks for that, and its control socket lies in a folder of the user's. It is ended by fusermount3
// (io/unmount.h).
#pragma once

#include <functional>

#include "fs/cli/mount_plan.h"

namespace ckptfs::fs::cli {

// Told once how the start went: success when the mount is there, or why not.
using StartReport = std::function<void(const Result<>&)>;

// Mounts (the image first, where there is one), reports, serves until unmounted or told to end by SIGTERM, SIGINT or
// SIGHUP, and takes everything down again. Returns the exit code. Only once in a process.
int serve(const MountPlan& plan, const StartReport& report);

// Forks a process that runs `body` as a daemon (own session, folder /, stdio on /dev/null once it has reported success,
// no descriptor of the caller's) and waits for its report: kSuccess, or kFailed with the error printed. To be called
// while the process has one thread.
int daemonize(const std::string& name, const std::function<int(const StartReport&)>& body);

}  // namespace ckptfs::fs::cli

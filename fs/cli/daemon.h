// The process behind a mount: its start, its life and its end.
//
// A mount by an ordinary user differs in these ways. It has no passthrough and no image. Other users may enter it only
// with `allow_other`. Its control socket lies in a folder of the user's. It is unmounted by fusermount3 (io/unmount.h).
#pragma once

#include "fs/cli/daemon_process.h"
#include "fs/cli/mount_plan.h"

namespace ckptfs::fs::cli {

// Mounts the image, if there is one, and the store. Reports. Serves until the mount is unmounted, or until SIGTERM,
// SIGINT or SIGHUP. Then takes everything down. Returns the exit code. To be called only once in a process.
int serve(const MountPlan& plan, const StartReport& report);

}  // namespace ckptfs::fs::cli

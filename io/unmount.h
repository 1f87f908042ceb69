// Ends a mount: by umount2 where we are root, else by fusermount3, which ends the FUSE mounts of whoever calls it.
// Stateless.
#pragma once

#include <string>

#include "io/result.h"

namespace ckptfs::io {

// detach: out of sight at once, and gone when nothing uses it any more.
enum class Unmount { now, detach };

// EBUSY: somebody uses it. The mount is not looked into, so that a dead one can be ended, too.
Result<> unmount(const std::string& mountpoint, Unmount how);

inline constexpr const char* kUserUnmounter = "fusermount3";

}  // namespace ckptfs::io

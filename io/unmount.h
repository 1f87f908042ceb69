// Unmounts: by umount2 as root, else by fusermount3, which unmounts the FUSE mounts of the user who calls it.
// Stateless.
#pragma once

#include <string>

#include "io/result.h"

namespace ckptfs::io {

// detach: the mount disappears at once, and ends when nothing uses it any more.
enum class Unmount { now, detach };

// Fails with EBUSY if the mount is in use. It does not access the mount, so it works on a dead one, too.
Result<> unmount(const std::string& mountpoint, Unmount how);

inline constexpr const char* kUserUnmounter = "fusermount3";

}  // namespace ckptfs::io

// Backing files of FUSE passthrough (Linux 6.9): the two ioctls on /dev/fuse, with their errors. libfuse's own
// fuse_passthrough_open tells only that it failed, not why. Stateless; any thread.
#pragma once

#include <string>

#include "io/result.h"

namespace ckptfs::fs {

// Registers `fd`, a regular file, with the connection of `session_fd` (after its FUSE_INIT); the backing id, above 0.
// A backing id from a read-only descriptor serves read-write opens too: the kernel opens the file again.
Result<int> open_backing(int session_fd, int fd);
Result<> close_backing(int session_fd, int backing_id);

// Tries a backing id on this file: success means that passthrough works for files of its file system.
Result<> probe_passthrough(int session_fd, const std::string& file);

}  // namespace ckptfs::fs

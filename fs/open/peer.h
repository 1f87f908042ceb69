// Who is at the other end of a connected Unix socket, as the kernel recorded it at connect(2). Any thread.
#pragma once

#include <sys/types.h>

#include "fs/open/permission.h"
#include "io/result.h"

namespace ckptfs::fs {

struct Peer {
  Credentials credentials;
  pid_t pid = 0;
};

// SO_PEERCRED, and the supplementary groups by SO_PEERGROUPS (not /proc/PID/status: that process may have changed them
// or its number may be another's by now).
Result<Peer> peer_of(int socket);

}  // namespace ckptfs::fs

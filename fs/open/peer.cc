#include "fs/open/peer.h"

#include <sys/socket.h>

#include <vector>

namespace ckptfs::fs {

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return last_error("SO_PEERCRED");

  std::vector<gid_t> groups(64);
  for (;;) {
    length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) == 0) break;
    if (errno != ERANGE) return last_error("SO_PEERGROUPS");
    groups.resize(length / sizeof(gid_t));
  }
  groups.resize(length / sizeof(gid_t));
  return Peer{{credentials.uid, credentials.gid, {groups.begin(), groups.end()}}, credentials.pid};
}

}  // namespace ckptfs::fs

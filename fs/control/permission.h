// Who may do what through the control socket: the rule of open(2), applied to an inode's owner and mode. The kernel
// never sees these requests, so the daemon has to ask. Pure: no state, no system calls, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "meta/types.h"

namespace ckptfs::fs {

struct Credentials {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;  // supplementary
};

enum Access : unsigned { kSearch = 1, kWrite = 2, kRead = 4 };

// As in POSIX the first class that fits decides: owner, else group, else others. Root may all.
inline bool may_access(const Credentials& who, const meta::InodeRecord& inode, unsigned wanted) {
  if (who.uid == 0) return true;
  unsigned shift = 0;
  if (who.uid == inode.uid) {
    shift = 6;
  } else if (who.gid == inode.gid || std::find(who.groups.begin(), who.groups.end(), inode.gid) != who.groups.end()) {
    shift = 3;
  }
  return ((inode.mode >> shift) & wanted) == wanted;
}

}  // namespace ckptfs::fs

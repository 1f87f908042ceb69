// Who may do what: the rule of open(2), applied to an inode's owner and mode. For requests that the kernel does not
// check itself: the control socket's, and what an xattr does beyond the inode that it is set on.
//
// Thread safety: may_access is pure; may_reach reads the tree only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "io/result.h"
#include "meta/types.h"

namespace ckptfs::meta {

class Tree;

struct Credentials {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups{};  // supplementary

  bool operator==(const Credentials&) const = default;
};

enum Access : unsigned { kSearch = 1, kWrite = 2, kRead = 4 };

// As in POSIX the first class that fits decides: owner, else group, else others. Root may all.
inline bool may_access(const Credentials& who, const InodeRecord& inode, unsigned wanted) {
  if (who.uid == 0) return true;
  unsigned shift = 0;
  if (who.uid == inode.uid) {
    shift = 6;
  } else if (who.gid == inode.gid || std::find(who.groups.begin(), who.groups.end(), inode.gid) != who.groups.end()) {
    shift = 3;
  }
  return ((inode.mode >> shift) & wanted) == wanted;
}

// May `who` have a file share this one's blocks? Whoever overwrites a live swap file that shares blocks needs new ones,
// and may be unable to see that there are none: only who may write to it decides that.
inline bool may_share(const Credentials& who, const InodeRecord& file) {
  const bool needs_room = (file.flags & kSwap) != 0 && file.is_live_file();
  return may_access(who, file, needs_room ? kRead | kWrite : kRead);
}

// May `who` do what is `wanted` with the inode, and search each folder on the way to it from the root? Of a file with
// several names the way to where it was made or last renamed counts.
Result<bool> may_reach(const Tree& tree, const Credentials& who, InodeNumber inode, unsigned wanted);

// EPERM where the folder has the sticky bit, and `who` owns neither it nor what is in it: that has this owner.
Result<> check_sticky(const Tree& tree, const Credentials& who, InodeNumber folder, uint32_t owner);
// Could `who` remove the directory, with all that is in it, by `rm -r`? EACCES or EPERM, in words.
Result<> check_removal(const Tree& tree, const Credentials& who, InodeNumber directory);

}  // namespace ckptfs::meta

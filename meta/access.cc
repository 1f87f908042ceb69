#include "meta/access.h"

#include <cerrno>

#include "meta/tree.h"

namespace ckptfs::meta {

Result<bool> may_reach(const Tree& tree, const Credentials& who, InodeNumber inode, unsigned wanted) {
  if (who.uid == 0) return true;
  for (InodeNumber at = inode;; wanted = kSearch) {
    TRY_ASSIGN(const InodeRecord record, tree.inode(at));
    if (!may_access(who, record, wanted)) return false;
    if (at == kRootInode) return true;
    at = record.parent;
    if (at == 0) return Error(ENOENT);  // it was removed meanwhile
  }
}

}  // namespace ckptfs::meta

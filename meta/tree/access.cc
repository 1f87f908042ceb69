#include "meta/tree/access.h"

#include <cerrno>

#include "meta/tree/tree.h"

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

namespace {

Error no_permission(const Tree& tree, InodeNumber folder, const InodeRecord& record) {
  return Error(EACCES, tree.path_of(folder) + ": permission denied; ask its owner (uid " + std::to_string(record.uid) +
                           ") or root");
}

Result<> check_emptying(const Tree& tree, const Credentials& who, InodeNumber folder, unsigned depth) {
  constexpr unsigned kDeepest = 256;
  if (depth > kDeepest) return Error(ELOOP, tree.path_of(folder) + ": folders lie too deep in each other");
  TRY_ASSIGN(const auto entries, tree.list(folder));
  if (entries.empty()) return success();
  TRY_ASSIGN(const InodeRecord record, tree.inode(folder));
  if (!may_access(who, record, kRead | kWrite | kSearch)) return no_permission(tree, folder, record);
  for (const DirectoryEntry& entry : entries) {
    TRY_ASSIGN(const InodeRecord below, tree.inode(entry.inode));
    TRY(check_sticky(tree, who, folder, below.uid));
    if (below.is_dir()) TRY(check_emptying(tree, who, entry.inode, depth + 1));
  }
  return success();
}

}  // namespace

Result<> check_sticky(const Tree& tree, const Credentials& who, InodeNumber folder, uint32_t owner) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(folder));
  const bool owns = who.uid == 0 || who.uid == owner || who.uid == record.uid;
  if ((record.mode & S_ISVTX) == 0 || owns) return success();
  return Error(EPERM, tree.path_of(folder) + ": only its owner may do that (its sticky bit is set)");
}

Result<> check_removal(const Tree& tree, const Credentials& who, InodeNumber directory) {
  if (who.uid == 0) return success();
  TRY_ASSIGN(const InodeRecord record, tree.inode(directory));
  TRY_ASSIGN(const bool reaches, may_reach(tree, who, record.parent, kWrite | kSearch));
  if (!reaches) {
    TRY_ASSIGN(const InodeRecord above, tree.inode(record.parent));
    return no_permission(tree, record.parent, above);
  }
  TRY(check_sticky(tree, who, record.parent, record.uid));
  return check_emptying(tree, who, directory, 0);
}

}  // namespace ckptfs::meta

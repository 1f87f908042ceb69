#include "meta/steps/source.h"

#include <cerrno>
#include <charconv>
#include <string>
#include <vector>

#include "meta/names.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::meta {

// A loop instead of recursion, since users may nest folders as deep as they like.
Result<std::vector<InodeNumber>> list_swap_folders(const Tree& tree) {
  std::vector<InodeNumber> found, folders{kRootInode};
  while (!folders.empty()) {
    const InodeNumber folder = folders.back();
    folders.pop_back();
    TRY_ASSIGN(const auto entries, tree.list(folder));
    for (const DirectoryEntry& entry : entries) {
      if (entry.type != S_IFDIR) continue;
      const auto record = tree.inode(entry.inode);
      if (!record && record.error().errno_value() == ENOENT) continue;  // removed meanwhile
      TRY(record);
      const uint64_t flags = record.value().flags;
      if ((flags & kSwap) != 0) found.push_back(entry.inode);
      if ((flags & (kSwap | kStep)) == 0) folders.push_back(entry.inode);
    }
  }
  return found;
}

namespace {

// The swap folders that a save of `who` is taken from by default: the user's own ones. If there are none, all that the
// user may use.
Result<std::vector<InodeNumber>> swap_folders_for(const Tree& tree, const Credentials& who) {
  TRY_ASSIGN(const auto all, list_swap_folders(tree));
  std::vector<InodeNumber> own, others;
  for (const InodeNumber folder : all) {
    const auto record = tree.inode(folder);
    const auto may_use = may_reach(tree, who, folder, kRead | kWrite | kSearch);
    if (!record || !may_use || !may_use.value()) continue;  // it was removed meanwhile, or is not for this user
    (record.value().uid == who.uid ? own : others).push_back(folder);
  }
  return own.empty() ? others : own;
}

}  // namespace

Result<InodeNumber> save_source(Store& store, InodeNumber series, const Credentials& who) {
  const Tree& tree = store.tree();
  TRY(check_series(tree, series));
  const auto set = store.index().xattr(series, kSourceXattr);
  if (set) {
    InodeNumber source = 0;
    std::from_chars(set.value().data(), set.value().data() + set.value().size(), source);
    const auto record = tree.inode(source);
    if (!record || record.value().nlink == 0) {
      return Error(ENOENT, tree.path_of(series) + ": its source is gone; set user.ckptfs.source anew");
    }
    TRY_ASSIGN(const bool may_reach_it, may_reach(tree, who, source, kRead | kSearch));
    if (may_reach_it) return source;
    return Error(EACCES, tree.path_of(series) + ": permission denied to its source (uid " + std::to_string(who.uid) +
                             "); set user.ckptfs.source to a zero_stage_N folder of yours");
  }
  if (set.error().errno_value() != ENOENT) return set.error();
  TRY_ASSIGN(const auto found, swap_folders_for(tree, who));
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    return Error(ENOENT, "the mount has no zero_stage_N folder yet that uid " + std::to_string(who.uid) +
                             " may save; set DeepSpeed's nvme_path to the mount and train a step first");
  }
  std::string paths;
  for (const InodeNumber folder : found) paths += (paths.empty() ? "" : ", ") + tree.path_of(folder);
  return Error(EINVAL, "the mount has several zero_stage_N folders (" + paths +
                           "); choose one: setfattr -n user.ckptfs.source -v PATH SERIES");
}

Result<> set_source(Store& store, InodeNumber series, InodeNumber source) {
  TRY(check_series(store.tree(), series));
  TRY_ASSIGN(const InodeRecord record, store.tree().inode(source));
  const std::string path = store.tree().path_of(source);
  if (!record.is_dir() || (record.flags & kSwap) == 0 || !is_swap_folder_name(path.substr(path.rfind('/') + 1))) {
    return Error(EINVAL, path + ": it is no zero_stage_N folder");
  }
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(InodeRecord series_record, store.index().inode(series));
  series_record.flags |= kSeries;
  change.batch.put(series, series_record);
  change.batch.put_xattr(series, kSourceXattr, std::to_string(source));
  return store.tree().commit(std::move(change));
}

}  // namespace ckptfs::meta

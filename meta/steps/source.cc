#include "meta/steps/source.h"

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "io/text.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::meta {

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

class Planner {
 public:
  Planner(const Tree& tree, const Credentials& who, SavePlan& plan) : tree_(tree), who_(who), plan_(plan) {}

  Result<> run(InodeNumber source) {
    plan_.guarded.insert(source);
    TRY(readable_folder(source));
    TRY_ASSIGN(const auto groups, tree_.list(source));
    for (const DirectoryEntry& entry : groups) {
      if (entry.type != S_IFDIR) continue;
      plan_.guarded.insert(entry.inode);
      if (entry.name == "optimizer") {
        TRY(unless_gone(take_group(entry, kTensorsName)));
      } else if (entry.name.ends_with("params")) {
        TRY(unless_gone(take_group(entry, kParamsName)));
      }
    }
    std::ranges::sort(plan_.files, {},
                      [](const PlannedFile& file) { return std::tie(file.group, file.folder, file.name); });
    return success();
  }

 private:
  // The folder's record, if its files may be listed and reached.
  Result<InodeRecord> readable_folder(InodeNumber number) const {
    TRY_ASSIGN(const InodeRecord record, tree_.inode(number));
    if (may_access(who_, record, kRead | kSearch)) return record;
    return denied(number, "read");
  }

  Error denied(InodeNumber number, const char* what) const {
    return Error(EACCES, tree_.path_of(number) + ": permission denied; who saves it must be able to " + what + " it");
  }

  // A folder that is removed this moment is left out.
  static Result<> unless_gone(Result<> taken) {
    return !taken && taken.error().errno_value() == ENOENT ? Result<>(success()) : taken;
  }

  Result<> take_group(const DirectoryEntry& group, const char* target) {
    TRY(readable_folder(group.inode));
    TRY_ASSIGN(const auto ranks, tree_.list(group.inode));
    for (const DirectoryEntry& rank : ranks) {
      const auto number = rank_of(rank.name);
      if (rank.type != S_IFDIR || !number) continue;
      plan_.guarded.insert(rank.inode);
      TRY(unless_gone(take_rank(rank, target, checkpoint_rank_name(*number))));
    }
    return success();
  }

  Result<> take_rank(const DirectoryEntry& rank, const std::string& group, const std::string& folder) {
    TRY_ASSIGN(const InodeRecord record, readable_folder(rank.inode));
    TRY_ASSIGN(const auto files, tree_.list(rank.inode));
    for (const DirectoryEntry& entry : files) {
      if (entry.type != S_IFREG || entry.name.find("gradient") != std::string::npos) continue;
      plan_.guarded.insert(entry.inode);
      TRY_ASSIGN(auto file, none_if_gone(tree_.inode(entry.inode)));
      if (!file) continue;
      if (!may_share(who_, *file)) return denied(entry.inode, "read and write");
      plan_.files.push_back({entry.inode, group, folder, entry.name, *std::move(file), record.newest_writer});
    }
    return success();
  }

  const Tree& tree_;
  const Credentials& who_;
  SavePlan& plan_;
};

}  // namespace

Result<InodeNumber> save_source(Store& store, InodeNumber series, const Credentials& who) {
  const Tree& tree = store.tree();
  TRY(check_series(tree, series));
  const auto set = store.index().xattr(series, kSourceXattr);
  if (set) {
    const auto source = io::parse_number<InodeNumber>(set.value()).value_or(0);
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
  if (!record.is_dir() || (record.flags & kSwap) == 0 || !is_swap_folder_name(name_of(store.tree(), source))) {
    return Error(EINVAL, store.tree().path_of(source) + ": it is no zero_stage_N folder");
  }
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(InodeRecord series_record, store.index().inode(series));
  series_record.flags |= kSeries;
  change.batch.put(series, series_record);
  change.batch.put_xattr(series, kSourceXattr, std::to_string(source));
  return store.tree().commit(std::move(change));
}

Result<SavePlan> plan_save(Tree& tree, InodeNumber source, const Credentials& who) {
  SavePlan plan;
  plan.version = tree.version();
  TRY(Planner(tree, who, plan).run(source));
  return plan;
}

}  // namespace ckptfs::meta

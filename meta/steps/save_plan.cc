#include "meta/steps/save_plan.h"

#include <algorithm>
#include <cerrno>
#include <tuple>

namespace ckptfs::meta {
namespace {

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
    std::sort(plan_.files.begin(), plan_.files.end(), [](const PlannedFile& a, const PlannedFile& b) {
      return std::tie(a.group, a.folder, a.name) < std::tie(b.group, b.folder, b.name);
    });
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
      auto file = tree_.inode(entry.inode);
      if (!file && file.error().errno_value() == ENOENT) continue;
      if (!file) return std::move(file).error();
      if (!may_share(who_, file.value())) return denied(entry.inode, "read and write");
      plan_.files.push_back({entry.inode, group, folder, entry.name, std::move(file).value(), record.newest_writer});
    }
    return success();
  }

  const Tree& tree_;
  const Credentials& who_;
  SavePlan& plan_;
};

}  // namespace

Result<SavePlan> plan_save(Tree& tree, InodeNumber source, const Credentials& who) {
  SavePlan plan;
  plan.version = tree.version();
  TRY(Planner(tree, who, plan).run(source));
  return plan;
}

}  // namespace ckptfs::meta

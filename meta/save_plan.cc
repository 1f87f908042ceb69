#include "meta/save_plan.h"

#include <tuple>

#include "meta/names.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

class Planner {
 public:
  Planner(const Tree& tree, bool ask_blobs, SavePlan& plan) : tree_(tree), ask_blobs_(ask_blobs), plan_(plan) {}

  Result<> run(InodeNumber source) {
    plan_.guarded.insert(source);
    TRY_ASSIGN(const auto groups, tree_.list(source));
    for (const DirectoryEntry& entry : groups) {
      if (entry.type != S_IFDIR) continue;
      plan_.guarded.insert(entry.inode);
      if (entry.name == "optimizer") {
        TRY(take_group(entry, kTensorsName));
      } else if (entry.name.ends_with("params")) {
        TRY(take_group(entry, kParamsName));
      }
    }
    for (auto& [key, file] : files_) plan_.files.push_back(std::move(file));
    return success();
  }

 private:
  Result<> take_group(const DirectoryEntry& group, const char* target) {
    TRY_ASSIGN(const auto ranks, tree_.list(group.inode));
    for (const DirectoryEntry& rank : ranks) {
      const auto number = rank_of(rank.name);
      if (rank.type != S_IFDIR || !number) continue;
      plan_.guarded.insert(rank.inode);
      TRY(take_rank(rank, target, checkpoint_rank_name(*number), group.name));
    }
    return success();
  }

  Result<> take_rank(const DirectoryEntry& rank, const std::string& group, const std::string& folder,
                     const std::string& from) {
    TRY_ASSIGN(const InodeRecord record, tree_.inode(rank.inode));
    TRY_ASSIGN(const auto files, tree_.list(rank.inode));
    for (const DirectoryEntry& entry : files) {
      if (entry.type != S_IFREG || entry.name.find("gradient") != std::string::npos) continue;
      plan_.guarded.insert(entry.inode);
      PlannedFile file{entry.inode, group, folder, entry.name, {}, 0, {}, false};
      if (ask_blobs_) {
        TRY_ASSIGN(const Attributes attributes, tree_.attributes(entry.inode));
        file.record = attributes.record;
        file.size = static_cast<uint64_t>(attributes.stat.st_size);
        file.mtime = attributes.stat.st_mtim;
        file.stale = nanoseconds(file.mtime) < record.newest_writer;
      } else {
        // No gate is closed yet: what goes meanwhile is not in the plan that counts either.
        auto present = tree_.inode(entry.inode);
        if (!present && present.error().errno_value() == ENOENT) continue;
        TRY_ASSIGN(file.record, std::move(present));
      }
      add(std::move(file), from);
    }
    return success();
  }

  // The parameter folders of two dtypes can hold the same name: the one written last is the run's.
  void add(PlannedFile file, const std::string& from) {
    const Key key{file.group, file.folder, file.name};
    const auto [at, fresh] = files_.try_emplace(key, file);
    if (fresh) return;
    plan_.warnings.push_back(file.folder + "/" + file.name + " is there for two dtypes (one in " + from +
                             "); the one written last is taken");
    if (later(file.mtime, at->second.mtime)) at->second = std::move(file);
  }

  using Key = std::tuple<std::string, std::string, std::string>;
  const Tree& tree_;
  const bool ask_blobs_;
  SavePlan& plan_;
  std::map<Key, PlannedFile> files_;
};

}  // namespace

Result<SavePlan> plan_save(const Tree& tree, InodeNumber source, bool ask_blobs) {
  SavePlan plan;
  TRY(Planner(tree, ask_blobs, plan).run(source));
  return plan;
}

}  // namespace ckptfs::meta

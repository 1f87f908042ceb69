#include "meta/steps.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>

#include "meta/formats/manifest.h"
#include "meta/names.h"
#include "meta/save_plan.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kDeepestStep = 256;  // folders in each other: who walks them calls itself for each

bool is_checkpoint_file(const DirectoryEntry& entry, bool has_config) {
  const std::string& name = entry.name;
  if (entry.type == S_IFDIR) return name == kTensorsName || name == kParamsName;
  return name.ends_with("model_states.pt") || name.ends_with("optim_states.pt") || name == "trainer_state.json" ||
         name == ".metadata" || formats::is_manifest_name(name) || (has_config && name.ends_with(".safetensors"));
}

// Can this entry be what was missing to a checkpoint?
bool may_complete_checkpoint(const DirectoryEntry& entry) {
  return entry.name == "config.json" || is_checkpoint_file(entry, true);
}

bool has_name(const std::vector<DirectoryEntry>& entries, const std::string& name) {
  return std::any_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) { return entry.name == name; });
}

bool holds_checkpoint(const std::vector<DirectoryEntry>& entries) {
  const bool has_config = has_name(entries, "config.json");
  return std::any_of(entries.begin(), entries.end(),
                     [&](const DirectoryEntry& entry) { return is_checkpoint_file(entry, has_config); });
}

bool any_ends_with(const std::vector<DirectoryEntry>& entries, std::string_view suffix) {
  return std::any_of(entries.begin(), entries.end(),
                     [&](const DirectoryEntry& entry) { return entry.name.ends_with(suffix); });
}

std::string kind_of(const std::vector<DirectoryEntry>& entries) {
  if (has_name(entries, "trainer_state.json")) return "hf";
  if (any_ends_with(entries, "model_states.pt") || any_ends_with(entries, "optim_states.pt")) return "deepspeed";
  if (has_name(entries, ".metadata")) return "dcp";
  if (std::ranges::any_of(entries, formats::is_manifest_name, &DirectoryEntry::name)) return "ckptfs";
  if (has_name(entries, kTensorsName) || has_name(entries, kParamsName)) return "swap state only";
  return "other";
}

Result<> visit_files(const Tree& tree, InodeNumber folder, std::vector<std::string>& path, const VisitFile& visit) {
  if (path.size() > kDeepestStep) return Error(ELOOP, tree.path_of(folder) + ": folders lie too deep in each other");
  TRY_ASSIGN(const auto entries, tree.list(folder));
  for (const DirectoryEntry& entry : entries) {
    path.push_back(entry.name);
    if (entry.type == S_IFDIR) TRY(visit_files(tree, entry.inode, path, visit));
    if (entry.type == S_IFREG) TRY(visit(path, entry.inode));
    path.pop_back();
  }
  return success();
}

Result<> visit_folders(const Tree& tree, InodeNumber folder,
                       const std::function<bool(InodeNumber, const InodeRecord&)>& enter, size_t depth = 0) {
  if (depth > kDeepestStep) return success();  // no series of ours lies so deep
  const auto entries = tree.list(folder);
  if (!entries && entries.error().errno_value() == ENOENT) return success();  // it was removed this moment
  TRY(entries);
  for (const DirectoryEntry& entry : entries.value()) {
    if (entry.type != S_IFDIR) continue;
    const auto record = tree.inode(entry.inode);
    if (!record && record.error().errno_value() == ENOENT) continue;  // it was removed this moment
    TRY(record);
    if (enter(entry.inode, record.value())) TRY(visit_folders(tree, entry.inode, enter, depth + 1));
  }
  return success();
}

// Is one of the folders on the path a step by its name?
bool leads_through_step(const std::string& path) {
  for (size_t begin = 1, end = 0; begin < path.size(); begin = end + 1) {
    end = std::min(path.find('/', begin), path.size());
    if (step_number(std::string_view(path).substr(begin, end - begin))) return true;
  }
  return false;
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string folder_of(const std::string& path) { return path.rfind('/') == 0 ? "/" : path.substr(0, path.rfind('/')); }

}  // namespace

Result<bool> is_step(const Tree& tree, InodeNumber directory) {
  return is_step(tree, directory, directory == kRootInode ? std::string() : name_of(tree.path_of(directory)));
}

Result<bool> is_step(const Tree& tree, InodeNumber directory, const std::string& name) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(directory));
  if (!record.is_dir() || directory == kRootInode) return false;
  if ((record.flags & kStep) != 0) return true;
  if (record.parent == kRootInode || !step_number(name)) return false;
  TRY_ASSIGN(const auto entries, tree.list(directory));
  return holds_checkpoint(entries);
}

Result<> note_entry(Tree& tree, InodeNumber folder, const DirectoryEntry& entry) {
  return may_complete_checkpoint(entry) ? note_directory(tree, folder) : Result<>(success());
}

Result<> note_directory(Tree& tree, InodeNumber directory) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(directory));
  if (record.parent == 0 || record.parent == kRootInode || (record.flags & kSwap) != 0) return success();
  TRY_ASSIGN(const InodeRecord above, tree.inode(record.parent));
  if ((above.flags & kSeries) != 0) return success();
  TRY_ASSIGN(const bool step, is_step(tree, directory));
  if (!step) return success();
  TRY_ASSIGN(const InodeNumber outer, tree.step_of(record.parent));
  if (outer != 0 || leads_through_step(tree.path_of(record.parent))) return success();
  Tree::Change change = tree.begin();
  TRY_ASSIGN(InodeRecord series, tree.inode(record.parent));
  if (series.nlink == 0) return success();
  series.flags |= kSeries;
  change.batch.put(record.parent, series);
  return tree.commit(std::move(change));
}

Result<> for_each_file(const Tree& tree, InodeNumber folder, const VisitFile& visit) {
  std::vector<std::string> path;
  return visit_files(tree, folder, path, visit);
}

Result<FileCount> count_files(const Tree& tree, InodeNumber folder) {
  FileCount count;
  const auto counted = for_each_file(tree, folder, [&](const auto&, InodeNumber file) -> Result<> {
    const auto attributes = tree.attributes(file);
    if (!attributes && attributes.error().errno_value() == ENOENT) return success();  // removed meanwhile
    TRY(attributes);
    ++count.files;
    count.bytes += static_cast<uint64_t>(attributes.value().stat.st_size);
    return success();
  });
  return counted ? Result<FileCount>(count) : counted.error();
}

Result<bool> is_in_step(const Tree& tree, InodeNumber directory) {
  for (InodeNumber at = directory; at != kRootInode && at != 0;) {
    TRY_ASSIGN(const InodeRecord folder, tree.inode(at));
    TRY_ASSIGN(const InodeRecord above, tree.inode(folder.parent));
    TRY_ASSIGN(const bool step, is_step(tree, at));
    if (step && ((above.flags & kSeries) != 0 || (folder.flags & kStep) != 0)) return true;
    at = folder.parent;
  }
  return false;
}

Result<> check_series(const Tree& tree, InodeNumber series) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(series));
  if (!record.is_dir()) return Error(ENOTDIR);
  TRY_ASSIGN(const bool in_step, is_in_step(tree, series));
  if (series == kRootInode || (record.flags & kSwap) != 0 || in_step) {
    return Error(EINVAL, tree.path_of(series) +
                             ": neither the root, nor a zero_stage_N folder, nor what lies in a step "
                             "can be a series; use /steps, or make a directory");
  }
  return success();
}

Result<std::vector<InodeNumber>> list_series(const Tree& tree) {
  std::vector<InodeNumber> series;
  TRY(visit_folders(tree, kRootInode, [&](InodeNumber number, const InodeRecord& record) {
    if ((record.flags & kSeries) != 0) series.push_back(number);
    return (record.flags & (kStep | kSwap)) == 0;
  }));
  return series;
}

namespace {

Result<StepInfo> info_of(Store& store, InodeNumber number, const std::string& series, const std::string& tag) {
  const Tree& tree = store.tree();
  StepInfo step;
  step.inode = number;
  step.series = series;
  step.tag = tag;
  TRY_ASSIGN(const Attributes attributes, tree.attributes(number));
  step.mtime = attributes.stat.st_mtim;
  TRY_ASSIGN(const auto record, store.index().find_step(number));
  step.record = record.value_or(StepRecord());
  TRY_ASSIGN(const auto entries, tree.list(number));
  step.kind = kind_of(entries);
  return step;
}

// What is removed meanwhile is left out.
Result<> add_steps_of(Store& store, InodeNumber series, std::vector<StepInfo>& steps) {
  TRY_ASSIGN(const auto entries, store.tree().list(series));
  const std::string path = store.tree().path_of(series);
  for (const DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    auto info = [&]() -> Result<std::optional<StepInfo>> {
      TRY_ASSIGN(const bool step, is_step(store.tree(), entry.inode, entry.name));
      if (!step) return std::optional<StepInfo>();
      TRY_ASSIGN(StepInfo found, info_of(store, entry.inode, path, entry.name));
      return std::optional(std::move(found));
    }();
    if (!info && info.error().errno_value() == ENOENT) continue;
    TRY(info);
    if (info.value()) steps.push_back(*std::move(info).value());
  }
  return success();
}

}  // namespace

Result<StepInfo> step_info(Store& store, InodeNumber number) {
  const std::string path = store.tree().path_of(number);
  return info_of(store, number, folder_of(path), name_of(path));
}

Result<std::vector<StepInfo>> list_steps(Store& store, InodeNumber series) {
  std::vector<InodeNumber> all{series};
  if (series == 0) {
    TRY_ASSIGN(all, list_series(store.tree()));
  }
  std::vector<StepInfo> steps;
  for (const InodeNumber one : all) {
    if (auto done = add_steps_of(store, one, steps); !done && done.error().errno_value() != ENOENT) return done.error();
  }
  std::sort(steps.begin(), steps.end(), [](const StepInfo& a, const StepInfo& b) {
    const auto order = [](const StepInfo& step) {
      return std::tuple(step.series, step_number(step.tag).value_or(UINT64_MAX), step.record.number, step.tag);
    };
    return order(a) < order(b);
  });
  return steps;
}

uint64_t number_of(const std::string& tag, const StepRecord& record) {
  return step_number(tag).value_or(record.number);
}

Result<uint64_t> allot_number(const Store& store, InodeNumber series, const std::string& tag,
                              const StepRecord& record) {
  if (step_number(tag)) return uint64_t{0};
  if (record.number != 0) return record.number;
  uint64_t last = 0;
  TRY_ASSIGN(const auto entries, store.tree().list(series));
  for (const DirectoryEntry& entry : entries) {
    TRY_ASSIGN(const auto other, store.index().find_step(entry.inode));
    if (other) last = std::max(last, other->number);
  }
  return last + 1;
}

Result<> set_pinned(Store& store, InodeNumber number, bool pinned) {
  Tree& tree = store.tree();
  TRY_ASSIGN(const bool step, is_step(tree, number));
  if (!step) return Error(EINVAL, tree.path_of(number) + ": it is no step; pin a step of a series");
  {
    Tree::Change change = tree.begin();
    TRY_ASSIGN(InodeRecord record, store.index().inode(number));
    if (record.nlink == 0) return Error(ENOENT);
    record.flags |= kStep;
    TRY_ASSIGN(const auto known, store.index().find_step(number));
    StepRecord present = known.value_or(StepRecord());
    present.pinned = pinned;
    if (pinned) tree.note_pinned(number);
    TRY_ASSIGN(present.number, allot_number(store, record.parent, name_of(tree.path_of(number)), present));
    change.batch.put(number, record);
    change.batch.put_step(number, present);
    if (!pinned) change.batch.allow_on_full_store();  // so that it can be removed
    TRY(tree.commit(std::move(change)));
  }
  return tree.sync();
}

}  // namespace ckptfs::meta

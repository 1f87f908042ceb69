#include "meta/tree/step_detection.h"

#include <algorithm>
#include <functional>

#include "io/log.h"
#include "meta/formats/manifest.h"
#include "meta/formats/thinning.h"
#include "meta/names.h"

namespace ckptfs::meta {
namespace {

bool is_checkpoint_file(const DirectoryEntry& entry, bool has_config) {
  const std::string& name = entry.name;
  if (entry.type == S_IFDIR) return name == kTensorsName || name == kParamsName;
  return name.ends_with("model_states.pt") || name.ends_with("optim_states.pt") || name == "trainer_state.json" ||
         name == ".metadata" || name == formats::kThinnedName || formats::is_manifest_name(name) ||
         (has_config && name.ends_with(".safetensors"));
}

// Can this entry be the file that a checkpoint still lacked?
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

// Marks the folder above a step as a series.
Result<> make_series_above(Tree& tree, InodeNumber directory) {
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

void warn_unless(const Result<>& noted, const Tree& tree, InodeNumber folder) {
  if (noted || noted.error().errno_value() == ENOENT) return;
  log::warn("{}: whether it is a step was not looked at: {}", tree.path_of(folder), noted.error().message());
}

}  // namespace

std::string name_of(const Tree& tree, InodeNumber directory) {
  const std::string path = tree.path_of(directory);
  return path.substr(path.rfind('/') + 1);
}

Result<bool> is_step(const Tree& tree, InodeNumber directory) {
  return is_step(tree, directory, directory == kRootInode ? std::string() : name_of(tree, directory));
}

Result<bool> is_step(const Tree& tree, InodeNumber directory, const std::string& name) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(directory));
  if (!record.is_dir() || directory == kRootInode) return false;
  if ((record.flags & kStep) != 0) return true;
  if (record.parent == kRootInode || !step_number(name)) return false;
  TRY_ASSIGN(const auto entries, tree.list(directory));
  if (holds_checkpoint(entries)) return true;
  TRY_ASSIGN(const InodeRecord above, tree.inode(record.parent));
  return (above.flags & kPushed) != 0 && !entries.empty();
}

std::string checkpoint_kind(const std::vector<DirectoryEntry>& entries) {
  if (has_name(entries, "trainer_state.json")) return "hf";
  if (has_name(entries, formats::kThinnedName)) return "weights";
  if (any_ends_with(entries, "model_states.pt") || any_ends_with(entries, "optim_states.pt")) return "deepspeed";
  if (has_name(entries, ".metadata")) return "dcp";
  if (std::ranges::any_of(entries, formats::is_manifest_name, &DirectoryEntry::name)) return "ckptfs";
  if (has_name(entries, kTensorsName) || has_name(entries, kParamsName)) return "swap state only";
  return "other";
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

void note_entry(Tree& tree, InodeNumber folder, const DirectoryEntry& entry) {
  if (may_complete_checkpoint(entry)) warn_unless(make_series_above(tree, folder), tree, folder);
}

void note_directory(Tree& tree, InodeNumber directory) {
  warn_unless(make_series_above(tree, directory), tree, directory);
}

}  // namespace ckptfs::meta

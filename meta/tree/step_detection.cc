#include "meta/tree/step_detection.h"

#include <fnmatch.h>

#include <algorithm>

#include "io/log.h"
#include "meta/formats/file_kinds.h"
#include "meta/names.h"

namespace ckptfs::meta {
namespace {

bool is_swap_root(const DirectoryEntry& entry) {
  return entry.type == S_IFDIR && (entry.name == kTensorsName || entry.name == kParamsName);
}

bool is_sign_folder(const DirectoryEntry& entry) {
  return is_swap_root(entry) || (entry.type == S_IFDIR && formats::is_sign_folder(entry.name));
}

// Can this entry be the file that a checkpoint still lacked?
bool may_complete_checkpoint(const DirectoryEntry& entry) {
  if (entry.type == S_IFDIR) return is_sign_folder(entry);
  const formats::FileKind kind = formats::kind_of(entry.name);
  return kind.is_sign(true) || kind.role == formats::FileRole::config || entry.name == formats::kVerlFile;
}

bool holds_checkpoint(const std::vector<DirectoryEntry>& entries) {
  bool config = false, model = false, actor = false, data = false;
  for (const DirectoryEntry& entry : entries) {
    if (is_sign_folder(entry)) return true;
    actor = actor || (entry.type == S_IFDIR && entry.name == formats::kVerlFolder);
    if (entry.type == S_IFDIR) continue;
    data = data || entry.name == formats::kVerlFile;
    const formats::FileKind kind = formats::kind_of(entry.name);
    if (kind.is_sign(false)) return true;
    config = config || kind.role == formats::FileRole::config;
    model = model || kind.is_sign(true);
  }
  return (config && model) || (actor && data);
}

// Those with this flag, but for what lies in a step or a swap folder.
Result<std::vector<InodeNumber>> list_folders(const Tree& tree, uint32_t flag) {
  std::vector<InodeNumber> found;
  TRY(visit_folders(tree, kRootInode, [&](InodeNumber number, const InodeRecord& record) {
    if ((record.flags & flag) != 0) found.push_back(number);
    return (record.flags & (kStep | kSwap)) == 0;
  }));
  return found;
}

Result<bool> is_declared(const Tree& tree, InodeNumber series, const std::string& name) {
  TRY_ASSIGN(const DeclaredSteps declared, declared_steps(tree, series));
  if (is_set_aside_name(name) || is_partial_name(name)) return false;
  return !declared.names.empty() && ::fnmatch(declared.names.c_str(), name.c_str(), FNM_PERIOD) == 0;
}

// By the first of its names, those that are signs by themselves, and the one that has just come. So whoever has put
// many others beside them does not make each new one cost a look at all.
Result<bool> looks_like_checkpoint(const Tree& tree, InodeNumber directory, const DirectoryEntry* came) {
  constexpr size_t kMostNames = 512;
  TRY_ASSIGN(auto entries, tree.list_first(directory, kMostNames));
  if (came != nullptr) entries.push_back(*came);
  if (entries.size() < kMostNames) return holds_checkpoint(entries);
  for (const std::string& name : formats::sign_names()) {
    const auto there = tree.child(directory, name);
    if (there) entries.push_back({name, there.value(), S_IFREG});
  }
  return holds_checkpoint(entries);
}

// Can no series be here: is the folder or one above it a step, by its mark or its name, or lies it too deep?
Result<bool> is_no_place_for_series(const Tree& tree, InodeNumber folder) {
  size_t depth = 0;
  for (InodeNumber at = folder; at != kRootInode && at != 0; ++depth) {
    TRY_ASSIGN(const InodeRecord record, tree.inode(at));
    if (depth > kDeepestStep || (record.flags & kStep) != 0) return true;
    TRY_ASSIGN(const std::string name, tree.own_name(at, record));
    // A Trainer's step holds a folder with a step's name, which may get its files first.
    TRY_ASSIGN(const bool declared, is_declared(tree, record.parent, name));
    if (declared || may_hold_step(name)) return true;
    TRY_ASSIGN(const bool step, step_number(name) ? looks_like_checkpoint(tree, at, nullptr) : Result<bool>(false));
    if (step) return true;
    at = record.parent;
  }
  return false;
}

// Marks the folder above a step as a series. `came`: the name that may have made it a step.
Result<> make_series_above(Tree& tree, InodeNumber directory, const DirectoryEntry* came) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(directory));
  if (record.parent == 0 || record.parent == kRootInode || (record.flags & kSwap) != 0) return success();
  TRY_ASSIGN(const InodeRecord above, tree.inode(record.parent));
  if ((above.flags & kSeries) != 0) return success();
  if ((record.flags & kStep) == 0) {
    if (!step_number(name_of(tree, directory))) return success();
    TRY_ASSIGN(const bool step, looks_like_checkpoint(tree, directory, came));
    if (!step) return success();
  }
  TRY_ASSIGN(const bool refused, is_no_place_for_series(tree, record.parent));
  if (refused) return success();
  Tree::Change change = tree.begin();
  TRY_ASSIGN(InodeRecord series, tree.inode(record.parent));
  if (series.nlink == 0) return success();
  series.flags |= kSeries;
  change.batch.put(record.parent, series);
  return tree.commit(std::move(change));
}

void warn_unless(const Result<>& noted, const Tree& tree, InodeNumber folder) {
  if (noted || is_gone(noted.error())) return;
  log::warn("{}: whether it is a step was not looked at: {}", tree.path_of(folder), noted.error().message());
}

}  // namespace

std::string text_of(const DeclaredSteps& declared) { return declared.names + '\n' + declared.complete_when; }

Result<DeclaredSteps> declared_steps(const Tree& tree, InodeNumber series) {
  if (series == 0) return DeclaredSteps();
  TRY_ASSIGN(const InodeRecord record, tree.inode(series));
  if ((record.flags & kDeclared) == 0) return DeclaredSteps();
  TRY_ASSIGN(const std::string text, tree.xattr(series, kDeclaredXattr));
  const size_t end = text.find('\n');
  if (end == std::string::npos) return Error(EIO, tree.path_of(series) + ": what is declared of it is damaged");
  return DeclaredSteps{text.substr(0, end), text.substr(end + 1)};
}

Result<> visit_folders(const Tree& tree, InodeNumber folder,
                       const std::function<bool(InodeNumber, const InodeRecord&)>& enter, size_t depth) {
  if (depth > kDeepestStep) return success();  // no series of ours lies so deep
  TRY_ASSIGN(const auto entries, none_if_gone(tree.list(folder)));
  if (!entries) return success();  // it was removed this moment
  for (const DirectoryEntry& entry : *entries) {
    if (entry.type != S_IFDIR) continue;
    TRY_ASSIGN(const auto record, none_if_gone(tree.inode(entry.inode)));
    if (!record) continue;  // it was removed this moment
    if (enter(entry.inode, *record)) TRY(visit_folders(tree, entry.inode, enter, depth + 1));
  }
  return success();
}

Result<bool> may_be_step(const Tree& tree, InodeNumber series, const std::string& name) {
  return step_number(name) ? Result<bool>(true) : is_declared(tree, series, name);
}

std::string name_of(const Tree& tree, InodeNumber directory) {
  const auto record = tree.inode(directory);
  const auto name = record ? tree.own_name(directory, record.value()) : record.error();
  if (name) return name.value();
  return directory == kRootInode ? std::string() : tree.path_of(directory);
}

Result<bool> is_step(const Tree& tree, InodeNumber directory) {
  return is_step(tree, directory, name_of(tree, directory));
}

Result<bool> is_step(const Tree& tree, InodeNumber directory, const std::string& name) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(directory));
  if (!record.is_dir() || directory == kRootInode) return false;
  if ((record.flags & kStep) != 0) return true;
  if (record.parent == kRootInode) return false;
  TRY_ASSIGN(const bool declared, is_declared(tree, record.parent, name));
  if (declared && (record.flags & kSeries) == 0) return true;
  if (!step_number(name)) return false;
  TRY_ASSIGN(const auto entries, tree.list(directory));
  if (holds_checkpoint(entries)) return true;
  TRY_ASSIGN(const InodeRecord above, tree.inode(record.parent));
  return (above.flags & kPushed) != 0 && !entries.empty();
}

std::string checkpoint_kind(const std::vector<DirectoryEntry>& entries) {
  formats::FileRoles roles;
  for (const DirectoryEntry& entry : entries) roles.set(static_cast<size_t>(formats::kind_of(entry.name).role));
  if (const char* const name = formats::name_of_kind(roles)) return name;
  const auto is_more = [](const DirectoryEntry& entry) {
    return !is_swap_root(entry) && formats::kind_of(entry.name).may_hold_weights();
  };
  const bool swap_only = std::ranges::any_of(entries, is_swap_root) && std::ranges::none_of(entries, is_more);
  return swap_only ? kSwapStateOnly : "other";
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

Result<std::vector<InodeNumber>> list_series(const Tree& tree) { return list_folders(tree, kSeries); }

Result<std::vector<InodeNumber>> list_swap_folders(const Tree& tree) { return list_folders(tree, kSwap); }

void note_entry(Tree& tree, InodeNumber folder, const DirectoryEntry& entry) {
  if (may_complete_checkpoint(entry)) warn_unless(make_series_above(tree, folder, &entry), tree, folder);
}

void note_directory(Tree& tree, InodeNumber directory) {
  warn_unless(make_series_above(tree, directory, nullptr), tree, directory);
}

}  // namespace ckptfs::meta

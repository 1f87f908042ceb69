#include "meta/steps/steps.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "meta/names.h"

namespace ckptfs::meta {
namespace {

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
  step.kind = checkpoint_kind(entries);
  return step;
}

// Leaves out steps that are removed meanwhile.
Result<> add_steps_of(Store& store, InodeNumber series, std::vector<StepInfo>& steps) {
  TRY_ASSIGN(const auto entries, store.tree().list(series));
  const std::string path = store.tree().path_of(series);
  for (const DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    TRY_ASSIGN(const auto step, none_if_gone(is_step(store.tree(), entry.inode, entry.name)));
    if (!step || !*step) continue;
    TRY_ASSIGN(auto info, none_if_gone(info_of(store, entry.inode, path, entry.name)));
    if (info) steps.push_back(*std::move(info));
  }
  return success();
}

}  // namespace

Result<> for_each_file(const Tree& tree, InodeNumber folder, const VisitFile& visit) {
  std::vector<std::string> path;
  return visit_files(tree, folder, path, visit);
}

Result<FileCount> count_files(const Tree& tree, InodeNumber folder) {
  FileCount count;
  const auto counted = for_each_file(tree, folder, [&](const auto&, InodeNumber file) -> Result<> {
    TRY_ASSIGN(const auto attributes, none_if_gone(tree.attributes(file)));
    if (!attributes) return success();  // removed meanwhile
    ++count.files;
    count.bytes += static_cast<uint64_t>(attributes->stat.st_size);
    return success();
  });
  return counted ? Result<FileCount>(count) : counted.error();
}

Result<bool> holds_symlink(const Tree& tree, InodeNumber folder, size_t depth) {
  if (depth > kDeepestStep) return true;  // nobody has looked
  TRY_ASSIGN(const auto entries, tree.list(folder));
  for (const DirectoryEntry& entry : entries) {
    if (entry.type == S_IFLNK) return true;
    if (entry.type != S_IFDIR) continue;
    TRY_ASSIGN(const bool below, holds_symlink(tree, entry.inode, depth + 1));
    if (below) return true;
  }
  return false;
}

Result<std::vector<StepInfo>> list_steps(Store& store, InodeNumber series) {
  std::vector<InodeNumber> all{series};
  if (series == 0) TRY_SET(all, list_series(store.tree()));
  std::vector<StepInfo> steps;
  for (const InodeNumber one : all) {
    if (auto done = add_steps_of(store, one, steps); !done && done.error().errno_value() != ENOENT) return done.error();
  }
  std::ranges::sort(steps, {}, [](const StepInfo& step) {
    return std::tuple(step.series, step_number(step.tag).value_or(UINT64_MAX), step.record.number, step.tag);
  });
  return steps;
}

uint64_t number_of(const std::string& tag, const StepRecord& record) {
  if (const auto number = step_number(tag)) return *number;
  return record.number != 0 ? record.number : last_number_in(tag).value_or(0);
}

Result<StepRecord> step_record(const Store& store, InodeNumber series, InodeNumber step, const std::string& tag) {
  TRY_ASSIGN(const auto known, store.index().find_step(step));
  StepRecord record = known.value_or(StepRecord());
  TRY_ASSIGN(const bool named, may_be_step(store.tree(), series, tag));
  if (named) record.number = 0;
  if (named || record.number != 0) return record;
  TRY_ASSIGN(const auto entries, store.tree().list(series));
  for (const DirectoryEntry& entry : entries) {
    TRY_ASSIGN(const auto other, store.index().find_step(entry.inode));
    if (other) record.number = std::max(record.number, other->number);
  }
  ++record.number;
  return record;
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
    TRY_ASSIGN(StepRecord present, step_record(store, record.parent, number, name_of(tree, number)));
    present.pinned = pinned;
    if (pinned) tree.note_pinned(number);
    change.batch.put(number, record);
    change.batch.put_step(number, present);
    if (!pinned) change.batch.allow_on_full_store();  // so that it can be removed
    TRY(tree.commit(std::move(change)));
  }
  return tree.sync();
}

}  // namespace ckptfs::meta

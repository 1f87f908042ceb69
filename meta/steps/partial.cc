#include "meta/steps/partial.h"

#include <linux/fs.h>
#include <stdio.h>

#include <algorithm>

#include "io/fault.h"
#include "io/mutex.h"
#include "meta/names.h"
#include "meta/steps/steps.h"

namespace ckptfs::meta {
namespace {

Error sealed_error(const Tree& tree, InodeNumber step) {
  return Error(EPERM, tree.path_of(step) + ": the step is sealed; choose another tag, or remove it");
}

Error taken_error(const Tree& tree, InodeNumber step) {
  return Error(EEXIST, tree.path_of(step) + ": there is something of that name already; remove or rename it");
}

// Is a folder that is saved into this one a part of a step, as DeepSpeed's is in a Trainer's? It is if this folder lies
// in a step, or if its name says that it will be a step.
Result<bool> makes_parts(const Tree& tree, InodeNumber folder) {
  if (step_number(name_of(tree, folder))) return true;
  return is_in_step(tree, folder);
}

// Makes the folder, or finds it.
Result<InodeNumber> make_folder(Tree& tree, InodeNumber series, const std::string& name, const Caller& caller) {
  const auto made = tree.make(series, name, {.mode = S_IFDIR | 0755, .rdev = 0, .target = {}}, caller);
  if (made) return made.value().stat.st_ino;
  if (made.error().errno_value() != EEXIST) return made.error();
  TRY_ASSIGN(const InodeNumber folder, tree.child(series, name));
  TRY_ASSIGN(const InodeRecord record, tree.inode(folder));
  if (!record.is_dir()) return Error(ENOTDIR, tree.path_of(folder) + ": it is no folder");
  return folder;
}

// Another user could change what is written there.
Result<> refuse_other_user(const Tree& tree, InodeNumber folder, const Caller& caller) {
  TRY_ASSIGN(const InodeRecord record, tree.inode(folder));
  if (record.uid == caller.uid) return success();
  return Error(EPERM, tree.path_of(folder) + ": another user began it; remove it, or wait until it is there");
}

// Marks the folder as a step, and `series` as a series.
Result<> mark(Store& store, InodeNumber series, InodeNumber folder, const std::string& name) {
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(InodeRecord above, store.index().inode(series));
  TRY_ASSIGN(InodeRecord record, store.index().inode(folder));
  if (record.nlink == 0) return Error(ENOENT, name + ": it was removed meanwhile");
  if ((record.flags & kStep) != 0 && (above.flags & kSeries) != 0) return success();
  above.flags |= kSeries;
  record.flags |= kStep;
  StepRecord step;
  TRY_ASSIGN(step.number, allot_number(store, series, name, step));
  change.batch.put(series, above);
  change.batch.put(folder, record);
  change.batch.put_step(folder, step);
  return store.tree().commit(std::move(change));
}

// Renames the attempt's folder to the step. False: there is a step of that name already.
Result<bool> become_step(Tree& tree, InodeNumber series, const std::string& name, const std::string& tag) {
  const auto renamed = tree.rename(series, name, series, tag, RENAME_NOREPLACE);
  if (renamed) return true;
  if (renamed.error().errno_value() == EEXIST) return false;
  return renamed.error();
}

// Moves the attempt's files into the step that is there. The step must belong to the user who began the attempt.
Result<Committed> merge(Store& store, InodeNumber partial, const InodeRecord& owner, InodeNumber step) {
  Tree& tree = store.tree();
  TRY_ASSIGN(const InodeRecord record, tree.inode(step));
  if ((record.flags & kSealed) != 0) return sealed_error(tree, step);
  if (record.uid != owner.uid) {
    return Error(EPERM, tree.path_of(step) + ": the step is another user's; choose another tag");
  }
  TRY_ASSIGN(auto moved, tree.move_all(partial, step));
  for (const DirectoryEntry& entry : moved.entries) {
    store.open_files().invalidate_name(partial, entry.name);
    store.open_files().invalidate_name(step, entry.name);
  }
  return Committed{step, std::move(moved.replaced), {}};
}

// Ends a commit after the step can be seen: syncs it, and removes the attempt's empty folder.
Result<> finish_commit(Tree& tree, InodeNumber series, const std::string& emptied, Committed& committed) {
  TRY(tree.sync());
  TRY(io::fault_point("commit.after_merge"));
  if (emptied.empty()) return success();
  TRY_ASSIGN(const Dropped folder, tree.remove_directory(series, emptied));
  committed.dropped.push_back(folder);
  return tree.sync();
}

// EIO, naming it: a file of the attempt is suspect. The ranks' files were frozen, and so asked, but a manifest was not.
Result<> refuse_suspect_files(const Tree& tree, InodeNumber partial) {
  if (tree.write_back().suspects() == 0) return success();
  return for_each_file(tree, partial, [&tree](const auto&, InodeNumber file) -> Result<> {
    const auto record = tree.inode(file);
    if (!record && record.error().errno_value() == ENOENT) return success();  // removed meanwhile
    TRY(record);
    return tree.refuse_suspect(file, record.value());
  });
}

}  // namespace

Result<InodeNumber> begin_partial(Store& store, InodeNumber series, const std::string& tag, const std::string& attempt,
                                  const Caller& caller, Existing existing) {
  const io::MutexLock no_seal_meanwhile(store.save_mutex());
  Tree& tree = store.tree();
  TRY(check_tag(tag));
  TRY(check_attempt(attempt));
  TRY_ASSIGN(const bool part, makes_parts(tree, series));
  const bool refuses = existing == Existing::refuse;
  if (part && refuses) return Error(EINVAL, tree.path_of(series) + ": it is a step, or lies in one; name a series");
  if (!part) TRY(check_series(tree, series));
  if (const auto step = tree.child(series, tag); step) {
    if (refuses) return taken_error(tree, step.value());
    TRY_ASSIGN(const InodeRecord record, tree.inode(step.value()));
    if ((record.flags & kSealed) != 0) return sealed_error(tree, step.value());
  }
  const std::string name = partial_name(tag, attempt);
  TRY_ASSIGN(const InodeNumber folder, make_folder(tree, series, name, caller));
  if (refuses) TRY(refuse_other_user(tree, folder, caller));
  if (!part) TRY(mark(store, series, folder, name));
  return folder;
}

Result<Committed> commit_partial(Store& store, InodeNumber partial, const std::string& tag, Existing existing) {
  const io::MutexLock no_seal_meanwhile(store.save_mutex());
  Tree& tree = store.tree();
  TRY(check_tag(tag));
  TRY_ASSIGN(const InodeRecord record, tree.inode(partial));
  const std::string name = name_of(tree, partial);
  if (!record.is_dir() || record.nlink == 0 || std::ranges::count(tags_of_partial(name), tag) == 0) {
    return Error(ENOENT, tree.path_of(partial) + ": it is no attempt to save " + tag + " (any more)");
  }
  TRY(refuse_suspect_files(tree, partial));
  const InodeNumber series = record.parent;
  TRY(io::fault_point("commit.before_batch"));
  Committed committed{partial, {}, {}};
  TRY_ASSIGN(const bool became, become_step(tree, series, name, tag));
  if (!became) {
    TRY_ASSIGN(const InodeNumber step, tree.child(series, tag));
    if (existing == Existing::refuse) return taken_error(tree, step);
    TRY_ASSIGN(committed, merge(store, partial, record, step));
  }
  store.open_files().invalidate_name(series, name);
  TRY_ASSIGN(committed.is_part, makes_parts(tree, series));
  if (auto done = finish_commit(tree, series, became ? "" : name, committed); !done) committed.problem = done.error();
  if (!committed.problem) TRY(io::fault_point("commit.after_batch"));
  return committed;
}

}  // namespace ckptfs::meta

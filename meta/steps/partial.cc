#include "meta/steps/partial.h"

#include <linux/fs.h>
#include <stdio.h>

#include <algorithm>

#include "io/fault.h"
#include "io/mutex.h"
#include "meta/names.h"
#include "meta/steps/ledger.h"
#include "meta/steps/steps.h"

namespace ckptfs::meta {
namespace {

constexpr unsigned kMostAttempts = 1000;  // to find a name for what is set aside

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
  TRY_ASSIGN(const StepRecord step, step_record(store, series, folder, name));
  change.batch.put(series, above);
  change.batch.put(folder, record);
  change.batch.put_step(folder, step);
  return store.tree().commit(std::move(change));
}

// Renames the attempt's folder to the step. False: there is a step of that name already. An attempt may have got a
// number for want of a name that has one.
Result<bool> become_step(Store& store, InodeNumber series, InodeNumber partial, const std::string& tag) {
  Tree& tree = store.tree();
  const std::string name = name_of(tree, partial);
  TRY_ASSIGN(const auto known, store.index().find_step(partial));
  if (known) {
    TRY_ASSIGN(const StepRecord record, step_record(store, series, partial, tag));
    Tree::Change change = tree.begin();
    change.batch.put_step(partial, record);
    TRY(tree.commit(std::move(change)));
  }
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
    TRY_ASSIGN(const auto record, none_if_gone(tree.inode(file)));
    return record ? tree.refuse_suspect(file, *record) : success();  // removed meanwhile
  });
}

// By its name alone it would be a step no more, so it gets the mark of one, and keeps its number.
Result<> mark_as_step(Store& store, InodeNumber series, InodeNumber step, const std::string& tag) {
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(const EntryRecord entry, store.index().entry(series, tag));
  if (entry.inode != step) return Error(ENOENT, tag + ": something else has that name now");
  TRY_ASSIGN(InodeRecord record, store.index().inode(step));
  TRY_ASSIGN(const auto known, store.index().find_step(step));
  StepRecord as_step = known.value_or(StepRecord());
  as_step.number = number_of(tag, as_step);
  record.flags |= kStep;
  change.batch.put(step, record);
  change.batch.put_step(step, as_step);
  return store.tree().commit(std::move(change));
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
  TRY_ASSIGN(const bool became, become_step(store, series, partial, tag));
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

// That it is unfinished is forgotten last: until then a crash leaves what makes the next mount begin anew. A user who
// gives the step its old name back is not overruled.
Result<std::string> set_aside(Store& store, InodeNumber series, InodeNumber step, const std::string& tag) {
  Tree& tree = store.tree();
  TRY(mark_as_step(store, series, step, tag));
  for (unsigned attempt = 1; attempt <= kMostAttempts; ++attempt) {
    const std::string name = set_aside_name(tag, attempt);
    const auto renamed = tree.rename(series, tag, series, name, RENAME_NOREPLACE);
    if (!renamed && renamed.error().errno_value() == EEXIST) continue;
    TRY(renamed);
    TRY(io::fault_point("set_aside.after_rename"));
    TRY(change_ledger(store, step, [](LedgerEntry& entry) { entry.unfinished = false; }));
    TRY(tree.sync());
    return name;
  }
  return Error(EEXIST, set_aside_name(tag, 1) + " and so on are taken, up to " + set_aside_name(tag, kMostAttempts) +
                           "; remove some");
}

}  // namespace ckptfs::meta

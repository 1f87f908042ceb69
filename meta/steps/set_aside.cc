#include "meta/steps/set_aside.h"

#include <linux/fs.h>
#include <stdio.h>

#include "io/fault.h"
#include "meta/names.h"
#include "meta/steps/ledger.h"
#include "meta/steps/steps.h"

namespace ckptfs::meta {
namespace {

constexpr unsigned kMostAttempts = 1000;  // to find a name

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

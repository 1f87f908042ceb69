#include "fs/steps/step_writers.h"

#include <algorithm>
#include <chrono>

#include "io/log.h"
#include "meta/names.h"
#include "meta/steps/steps.h"
#include "meta/tree/process.h"

namespace ckptfs::fs {
namespace {

constexpr std::chrono::seconds kSameRun{2};  // the processes of a run begin one after the other
constexpr size_t kMostKnown = 4096;

bool has_gone(const Error& error) { return error.errno_value() == ENOENT; }

// When the newest of them began. None: nobody knows who wrote it.
std::optional<meta::StoreTime> newest_run(const std::vector<meta::StepWriter>& writers) {
  std::optional<meta::StoreTime> newest;
  for (const meta::StepWriter& one : writers) {
    if (one.process.pid != 0 && !one.is_command) newest = std::max(newest, std::optional(one.began));
  }
  return newest;
}

}  // namespace

void StepWriters::watch(meta::InodeNumber series, Purpose purpose) {
  const io::MutexLock lock(mutex_);
  series_[series] |= purpose;
  watches_ = true;
}

void StepWriters::unwatch(meta::InodeNumber series, Purpose purpose) {
  const io::MutexLock lock(mutex_);
  const auto known = series_.find(series);
  if (known != series_.end() && (known->second &= ~static_cast<unsigned>(purpose)) == 0) series_.erase(known);
  watches_ = !series_.empty();
}

void StepWriters::note(meta::InodeNumber folder, const meta::Caller& caller) {
  if (!watches_) return;
  const auto noted = try_note(folder, caller);
  if (!noted && !has_gone(noted.error())) {
    log::warn("who writes to {} is not noted: {}", tree_.path_of(folder), noted.error().message());
  }
}

void StepWriters::note_renamed(meta::InodeNumber folder, const meta::Caller& caller) {
  if (!watches_) return;
  {
    const io::MutexLock lock(mutex_);
    no_steps_.clear();
    known_.clear();
  }
  note(folder, caller);
}

// Who is gone already need not be recorded.
Result<> StepWriters::try_note(meta::InodeNumber folder, const meta::Caller& caller) {
  TRY_ASSIGN(const meta::InodeNumber step, step_above(folder));
  if (step == 0) return success();
  const meta::FoundProcess found = meta::find_process(caller.pid);
  const auto writer =
      found.gone ? std::nullopt : std::optional(meta::writer_now(here_, found.process, step_facts_.clock()));
  if (is_known(step, writer)) {
    tell_({step, 0, 0, nullptr});
    return success();
  }
  TRY(step_facts_.clock().note(store_.index()));  // what begins after the next boot is later
  TRY_ASSIGN(const auto entry, change(step, [&writer](meta::LedgerEntry& one) { meta::note_writer(one, writer); }));
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(step));
  tell_({step, record.parent, record.uid, &entry.writers});
  return success();
}

// The step of a watched series that the folder is or lies in; 0: none.
Result<meta::InodeNumber> StepWriters::step_above(meta::InodeNumber folder) {
  for (meta::InodeNumber at = folder; at != meta::kRootInode && at != 0;) {
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(at));
    bool ask = false;
    {
      const io::MutexLock lock(mutex_);
      ask = series_.contains(record.parent) && !no_steps_.contains(at);
      if (ask && known_.contains(at)) return at;
    }
    if (ask && meta::step_number(meta::name_of(tree_, at))) return at;
    if (ask) {
      const io::MutexLock lock(mutex_);
      if (no_steps_.size() >= kMostKnown) no_steps_.clear();
      no_steps_.insert(at);
    }
    at = record.parent;
  }
  return meta::InodeNumber{0};
}

bool StepWriters::is_known(meta::InodeNumber step, const std::optional<meta::StepWriter>& writer) const {
  const io::MutexLock lock(mutex_);
  const auto known = known_.find(step);
  return known != known_.end() && meta::is_noted(known->second, writer);
}

Result<meta::LedgerEntry> StepWriters::change(meta::InodeNumber step,
                                              const std::function<void(meta::LedgerEntry&)>& change) {
  const io::MutexLock noting(noting_);
  TRY_ASSIGN(auto entry, meta::change_ledger(store_, step, change));
  const io::MutexLock lock(mutex_);
  if (known_.size() >= kMostKnown) known_.clear();
  known_[step] = entry;
  return entry;
}

Result<bool> StepWriters::note_whole(meta::InodeNumber step, const meta::LedgerEntry& inspected,
                                     meta::WallTime changed) {
  bool same = false;
  TRY(change(step, [&](meta::LedgerEntry& entry) {
    same = entry.writers == inspected.writers && entry.unfinished == inspected.unfinished &&
           entry.by_run == inspected.by_run;
    if (same) meta::note_whole(entry, changed);
  }));
  return same;
}

void StepWriters::forget(meta::InodeNumber inode) {
  if (!watches_) return;
  const io::MutexLock lock(mutex_);
  series_.erase(inode);
  known_.erase(inode);
  no_steps_.erase(inode);
}

Result<std::string> StepWriters::younger_than(meta::InodeNumber series, meta::InodeNumber step) const {
  TRY_ASSIGN(const auto entry, meta::ledger_of(store_, step));
  const auto own = newest_run(entry.writers);
  if (!own) return std::string();
  TRY_ASSIGN(const auto steps, meta::list_steps(store_, series));
  const auto is_it = [step](const meta::StepInfo& one) { return one.inode == step; };
  const auto found = std::ranges::find_if(steps, is_it);
  const uint64_t number = found == steps.end() ? UINT64_MAX : meta::number_of(found->tag, found->record);
  for (const meta::StepInfo& one : steps) {
    if (one.inode == step || meta::number_of(one.tag, one.record) > number) continue;
    TRY_ASSIGN(const auto other, meta::ledger_of(store_, one.inode));
    const auto newest = newest_run(other.writers);
    if (!newest || *newest <= *own + kSameRun) continue;
    return "a process that began after those that wrote it has written to " + one.tag +
           ": it may be a run that will save this step again, and its files are not to mix with these. Saving the step "
           "again ends the wait";
  }
  return std::string();
}

}  // namespace ckptfs::fs

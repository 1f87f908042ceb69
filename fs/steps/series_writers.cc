#include "fs/steps/series_writers.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>

#include "io/log.h"
#include "meta/names.h"
#include "meta/steps/policy.h"
#include "meta/steps/steps.h"
#include "meta/tree/process.h"

namespace ckptfs::fs {
namespace {

constexpr const char* kNewestWriterXattr = "user.ckptfs.newest_run";
constexpr std::chrono::seconds kCommand{2};  // who has run no longer than that is a command
constexpr int64_t kSameRun = 2'000'000'000;  // ns: the processes of a run begin one after the other
constexpr size_t kMostSteps = 65536;

}  // namespace

void SeriesWriters::watch(meta::InodeNumber series) {
  const io::MutexLock lock(mutex_);
  series_.insert(series);
  watches_ = true;
}

void SeriesWriters::unwatch(meta::InodeNumber series) {
  const io::MutexLock lock(mutex_);
  series_.erase(series);
  watches_ = !series_.empty();
}

void SeriesWriters::note(meta::InodeNumber folder, const meta::Caller& caller) {
  if (!watches_) return;
  const auto noted = try_note(folder, caller);
  if (!noted && noted.error().errno_value() != ENOENT) {
    log::warn("who writes to {} is not recorded: {}", store_.tree().path_of(folder), noted.error().message());
  }
}

Result<> SeriesWriters::try_note(meta::InodeNumber folder, const meta::Caller& caller) {
  meta::InodeNumber step = 0, at = folder;
  for (size_t depth = 0; depth < meta::kDeepestStep && at != meta::kRootInode; ++depth) {
    TRY_ASSIGN(const meta::InodeRecord record, store_.tree().inode(at));
    const io::MutexLock lock(mutex_);
    if (series_.contains(record.parent)) step = at;
    if (step != 0) break;
    at = record.parent;
  }
  const meta::Process writer = step == 0 ? meta::Process() : meta::find_process(caller.pid).process;
  if (writer.pid == 0 || meta::age_of(writer) < kCommand) return success();
  const meta::StoreClock& clock = step_facts_.clock();
  const int64_t begun = (clock.at_boot() + meta::start_of(writer)).count();
  TRY_ASSIGN(const auto known, newest_of(step));
  if ((known && *known >= begun) || meta::is_fetch_name(meta::name_of(store_.tree(), step))) return success();
  const io::MutexLock noting(noting_);
  TRY_ASSIGN(const auto before, newest_of(step));
  if (before && *before >= begun) return success();
  TRY(clock.note(store_.index()));  // what begins after the next boot is later
  TRY(meta::set_control_xattr(store_, step, kNewestWriterXattr, std::to_string(begun)));
  const io::MutexLock lock(mutex_);
  if (newest_.size() >= kMostSteps) newest_.clear();
  newest_[step] = begun;
  return success();
}

Result<std::optional<int64_t>> SeriesWriters::newest_of(meta::InodeNumber step) const {
  {
    const io::MutexLock lock(mutex_);
    if (const auto known = newest_.find(step); known != newest_.end()) {
      return std::optional(known->second);
    }
  }
  const auto text = store_.index().xattr(step, kNewestWriterXattr);
  if (!text && text.error().errno_value() == ENOENT) return std::optional<int64_t>();
  TRY(text);
  int64_t begun = 0;
  std::from_chars(text.value().data(), text.value().data() + text.value().size(), begun);
  return std::optional(begun);
}

Result<std::string> SeriesWriters::younger_than(meta::InodeNumber series, meta::InodeNumber step) const {
  TRY_ASSIGN(const auto own, newest_of(step));
  if (!own) return std::string();
  TRY_ASSIGN(const auto steps, meta::list_steps(store_, series));
  const auto is_it = [step](const meta::StepInfo& one) { return one.inode == step; };
  const auto found = std::ranges::find_if(steps, is_it);
  const uint64_t number = found == steps.end() ? UINT64_MAX : meta::number_of(found->tag, found->record);
  for (const meta::StepInfo& one : steps) {
    if (one.inode == step || meta::number_of(one.tag, one.record) > number) continue;
    TRY_ASSIGN(const auto other, newest_of(one.inode));
    if (!other || *other <= *own + kSameRun) continue;
    return "a process that began after those that wrote it has written to " + one.tag +
           ": it may be a run that will save this step again, and its files are not to mix with these. Saving the step "
           "again ends the wait";
  }
  return std::string();
}

}  // namespace ckptfs::fs

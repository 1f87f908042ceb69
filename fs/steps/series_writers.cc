#include "fs/steps/series_writers.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>

#include "io/log.h"
#include "meta/names.h"
#include "meta/steps/policy.h"
#include "meta/steps/steps.h"
#include "meta/time.h"
#include "meta/tree/process.h"

namespace ckptfs::fs {
namespace {

constexpr const char* kNewestWriterXattr = "user.ckptfs.newest_writer";
constexpr uint64_t kCommand = 2'000'000'000;  // ns: who has run no longer than that is a command
// ns: the time at which a process began is told by the wall clock, and differs a little each time it is asked for.
constexpr uint64_t kSameRun = 2'000'000'000;
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
  const uint64_t begun = step == 0 ? 0 : meta::process_start(caller.pid);
  if (begun == 0 || meta::nanoseconds(meta::now()) - begun < kCommand) return success();
  TRY_ASSIGN(const uint64_t known, newest_of(step));
  if (known >= begun || meta::is_fetch_name(meta::name_of(store_.tree(), step))) return success();
  const io::MutexLock noting(noting_);
  TRY_ASSIGN(const uint64_t before, newest_of(step));
  if (before >= begun) return success();
  TRY(meta::set_control_xattr(store_, step, kNewestWriterXattr, std::to_string(begun)));
  const io::MutexLock lock(mutex_);
  if (newest_.size() >= kMostSteps) newest_.clear();
  newest_[step] = begun;
  return success();
}

Result<uint64_t> SeriesWriters::newest_of(meta::InodeNumber step) const {
  {
    const io::MutexLock lock(mutex_);
    if (const auto known = newest_.find(step); known != newest_.end()) return known->second;
  }
  const auto text = store_.index().xattr(step, kNewestWriterXattr);
  if (!text && text.error().errno_value() == ENOENT) return uint64_t{0};
  TRY(text);
  uint64_t begun = 0;
  std::from_chars(text.value().data(), text.value().data() + text.value().size(), begun);
  return begun;
}

Result<std::string> SeriesWriters::younger_than(meta::InodeNumber series, meta::InodeNumber step) const {
  TRY_ASSIGN(const uint64_t own, newest_of(step));
  if (own == 0) return std::string();  // nobody knows who wrote it
  TRY_ASSIGN(const auto steps, meta::list_steps(store_, series));
  const auto is_it = [step](const meta::StepInfo& one) { return one.inode == step; };
  const auto found = std::ranges::find_if(steps, is_it);
  const uint64_t number = found == steps.end() ? UINT64_MAX : meta::number_of(found->tag, found->record);
  for (const meta::StepInfo& one : steps) {
    if (one.inode == step || meta::number_of(one.tag, one.record) > number) continue;
    TRY_ASSIGN(const uint64_t other, newest_of(one.inode));
    if (other <= own + kSameRun) continue;
    return "a process that began after those that wrote it has written to " + one.tag +
           ": it may be a run that will save this step again, and its files are not to mix with these. Saving the step "
           "again ends the wait";
  }
  return std::string();
}

}  // namespace ckptfs::fs

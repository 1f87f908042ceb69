#include "fs/steps/step_writers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <string_view>

#include "io/fault.h"
#include "io/fd.h"
#include "io/log.h"
#include "meta/formats/file_kinds.h"
#include "meta/names.h"
#include "meta/tree/process.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::fs {
namespace {

constexpr size_t kMostKnown = 4096;
constexpr meta::WallTime kLongAgo{std::chrono::nanoseconds(1)};  // of a step whose files are all frozen

// Those that bring what others wrote, in however long a time.
constexpr auto kCopyingTools = std::to_array<std::string_view>(
    {"cp", "mv", "rsync", "tar", "scp", "sftp-server", "rclone", "git", "git-lfs", "unzip", "install"});
// Their forks make the files of a redirection, and are about to become a command.
constexpr auto kShells = std::to_array<std::string_view>({"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"});

bool is_one_of(std::span<const std::string_view> names, const meta::Process& process) {
  const auto comm = io::read_file("/proc/" + std::to_string(process.pid) + "/comm");
  return comm && std::ranges::count(names, comm.value().substr(0, comm.value().find('\n'))) != 0;
}

// A shell's fork is about to become a command, and a copying tool's is one: it works for itself.
bool becomes_command(const meta::FoundProcess& found) {
  const bool is_fork = found.forked_from != found.process;
  return is_fork && (is_one_of(kCopyingTools, found.process) || is_one_of(kShells, found.forked_from));
}

// A program that trains may fork for each file that it writes, as Megatron does. While such a fork is as young as a
// command, it counts as its program, which has more to write when the fork has ended.
meta::Process who_writes(const meta::FoundProcess& found) {
  const bool is_young = meta::age_of(found.process) < meta::kCommandAge;
  return is_young && !becomes_command(found) ? found.forked_from : found.process;
}

// An attempt becomes a step. What a fetch brings was written elsewhere.
Result<bool> may_be_step(const meta::Tree& tree, const meta::InodeRecord& record, const std::string& name) {
  if (meta::is_fetch_name(name)) return false;
  if ((record.flags & meta::kStep) != 0 || meta::is_partial_name(name)) return true;
  return meta::may_be_step(tree, record.parent, name);
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
  if (const auto noted = try_note(folder, caller); !noted) warn(folder, noted.error());
}

void StepWriters::note_written(meta::InodeNumber file, const meta::Caller& caller, bool empties) {
  if (!watches_) return;
  if (const auto noted = try_note_written(file, caller, empties); !noted) warn(file, noted.error());
}

void StepWriters::note_lost(meta::InodeNumber folder, const std::string& name, meta::InodeNumber lost,
                            const meta::Caller& caller) {
  if (!watches_) return;
  if (const auto noted = try_note_lost(folder, name, lost, caller); !noted) warn(folder, noted.error());
}

uint64_t StepWriters::program_of(const meta::Caller& caller) const {
  if (!watches_) return 0;
  const meta::FoundProcess found = meta::find_process(caller.pid);
  if (found.gone || found.process.pid == 0) return 0;
  const bool alone = becomes_command(found);
  return meta::program_id(here_, alone ? found.process : meta::find_program(found.process));
}

void StepWriters::warn(meta::InodeNumber folder, const Error& error) const {
  if (is_gone(error)) return;
  log::warn("who writes to {} is not noted: {}", tree_.path_of(folder), error.message());
}

void StepWriters::names_changed() {
  if (!watches_) return;
  const io::MutexLock lock(mutex_);
  known_.clear();
}

// Who is gone already need not be recorded.
Result<StepWriters::Noted> StepWriters::try_note(meta::InodeNumber folder, const meta::Caller& caller) {
  TRY_ASSIGN(const meta::InodeNumber step, step_above(folder));
  if (step == 0) return Noted();
  const meta::FoundProcess found = meta::find_process(caller.pid);
  const meta::Process process = who_writes(found);
  auto writer = found.gone ? std::nullopt : std::optional(meta::StepWriter{here_, process, {}, false});
  const Noted noted{step, program_of(caller)};
  if (is_known(step, writer)) {
    tell_({step, 0, 0, nullptr});
    return noted;
  }
  const meta::StoreClock& clock = step_facts_.clock();
  if (writer) {
    writer = meta::writer_now(here_, process, clock, is_one_of(kCopyingTools, process));
    writer->program = noted.program;
    writer->launch = meta::launch_of(process);
  }
  TRY(clock.note(store_.index()));  // what begins after the next boot is later
  TRY_ASSIGN(const auto ended, ended_of_launch(step, writer));
  const auto note = [&](meta::LedgerEntry& one) {
    meta::note_writer(one, writer, meta::wall_time(meta::now()),
                      [&](const meta::Process& other) { return ended.contains(other); });
  };
  meta::LedgerEntry entry;
  {
    const io::MutexLock noting(noting_);
    TRY_SET(entry, change(step, note));
  }
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(step));
  tell_({step, record.parent, record.uid, &entry.writers});
  return noted;
}

// Who is noted after that has just written, so it lives.
Result<std::set<meta::Process>> StepWriters::ended_of_launch(meta::InodeNumber step,
                                                             const std::optional<meta::StepWriter>& writer) const {
  std::set<meta::Process> ended;
  if (!writer || writer->launch.launcher == 0) return ended;
  TRY_ASSIGN(const auto entry, meta::ledger_of(store_, step));
  for (const auto* const list : {&entry.savers, &entry.writers}) {
    for (const meta::StepWriter& one : *list) {
      if (one.launch.id == writer->launch.id && meta::has_ended(one.process)) ended.insert(one.process);
    }
  }
  return ended;
}

// That there are two runs is noted before the file is said to be of the second one. So a daemon that is killed in
// between leaves a doubt, no false certainty.
Result<> StepWriters::try_note_written(meta::InodeNumber file, const meta::Caller& caller, bool empties) {
  TRY_ASSIGN(meta::InodeRecord record, tree_.inode(file));
  TRY_ASSIGN(const Noted noted, try_note(record.parent, caller));
  if (noted.program == 0 || record.newest_writer == noted.program) return success();
  TRY_ASSIGN(const bool takes_over, empties ? Result<bool>(true) : is_training(noted));
  if (!takes_over) return success();
  const io::MutexLock noting(noting_);  // two may write to it at once
  TRY_SET(record, tree_.inode(file));
  TRY(note_overwritten(noted, record.parent, record.name, record.newest_writer));
  return tree_.set_writer(file, noted.program);
}

Result<> StepWriters::try_note_lost(meta::InodeNumber folder, const std::string& name, meta::InodeNumber lost,
                                    const meta::Caller& caller) {
  TRY_ASSIGN(const Noted noted, try_note(folder, caller));
  if (noted.program == 0) return success();
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(lost));
  if (!record.is_live_file() || record.newest_writer == noted.program) return success();
  const io::MutexLock noting(noting_);
  return note_overwritten(noted, folder, name, record.newest_writer);
}

// Who writes notes does not matter.
Result<> StepWriters::note_overwritten(const Noted& noted, meta::InodeNumber folder, const std::string& name,
                                       uint64_t before) {
  if (!tells_another_run(noted, before)) return success();
  if (meta::formats::kind_of(path_in(noted.step, folder, name)).role == meta::formats::FileRole::note) return success();
  TRY(change(noted.step, [&](meta::LedgerEntry& known) { meta::note_overwritten(known, noted.program, before); }));
  return success();
}

Result<bool> StepWriters::is_training(const Noted& noted) const {
  {
    const io::MutexLock lock(mutex_);
    if (const auto known = known_.find(noted.step); known != known_.end())
      return known->second.writer_of(noted.program) != nullptr;
  }
  TRY_ASSIGN(const auto entry, meta::ledger_of(store_, noted.step));
  return entry.writer_of(noted.program) != nullptr;
}

// True where it is not known at once, too.
bool StepWriters::tells_another_run(const Noted& noted, uint64_t before) const {
  const io::MutexLock lock(mutex_);
  const auto known = known_.find(noted.step);
  return known == known_.end() || meta::tells_another_run(known->second, noted.program, before);
}

std::string StepWriters::path_in(meta::InodeNumber step, meta::InodeNumber folder, std::string name) const {
  for (meta::InodeNumber at = folder; at != step && at != meta::kRootInode;) {
    const auto record = tree_.inode(at);
    if (!record) break;
    name = meta::name_of(tree_, at) + '/' + name;
    at = record.value().parent;
  }
  return name;
}

// The step of a watched series that the folder is or lies in; 0: none.
Result<meta::InodeNumber> StepWriters::step_above(meta::InodeNumber folder) {
  for (meta::InodeNumber at = folder; at != meta::kRootInode && at != 0;) {
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(at));
    bool ask = false;
    {
      const io::MutexLock lock(mutex_);
      ask = series_.contains(record.parent);
      if (ask && known_.contains(at)) return at;
    }
    TRY_ASSIGN(const bool step, ask ? may_be_step(tree_, record, meta::name_of(tree_, at)) : Result<bool>(false));
    if (step) return at;
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
  TRY_ASSIGN(auto entry, meta::change_ledger(store_, step, change));
  const io::MutexLock lock(mutex_);
  if (known_.size() >= kMostKnown) known_.clear();
  known_[step] = entry;
  return entry;
}

// Who opened a file before it was forgotten here has it open, or has changed what was inspected. Who does so later is
// noted anew.
Result<bool> StepWriters::note_whole(const StepStatus& step, const std::function<void()>& done) {
  TRY(io::fault_point("writers.before_whole"));
  {
    const io::MutexLock lock(mutex_);
    known_.erase(step.inode);
  }
  TRY_ASSIGN(const bool in_use, step_facts_.is_in_use(step.inode));
  if (in_use) return false;
  TRY_ASSIGN(const StepStatus now, step_facts_.inspect_step(step.inode));
  if (now.fingerprint != step.fingerprint) return false;
  const io::MutexLock noting(noting_);
  {
    const io::MutexLock lock(mutex_);
    if (known_.contains(step.inode)) return false;
  }
  bool same = false;
  std::vector<uint64_t> programs;
  for (const auto& [program, path] : step.times.writers) programs.push_back(program);
  TRY_ASSIGN(const meta::InodeRecord folder, tree_.inode(step.inode));
  TRY(meta::change_ledger(store_, step.inode, [&](meta::LedgerEntry& entry) {
    same = entry.writers == step.ledger.writers && entry.unfinished == step.ledger.unfinished &&
           entry.by_run == step.ledger.by_run;
    if (!same) return;
    meta::note_whole(entry, folder.parent, std::max(step.times.newest, kLongAgo), step.times.oldest_at, programs);
  }));
  if (same) done();
  return same;
}

Result<> StepWriters::note_named(meta::InodeNumber step) {
  const io::MutexLock noting(noting_);
  TRY(change(step, [](meta::LedgerEntry& entry) { entry.named = true; }));
  return success();
}

void StepWriters::forget(meta::InodeNumber inode) {
  if (!watches_) return;
  const io::MutexLock lock(mutex_);
  series_.erase(inode);
  known_.erase(inode);
}

}  // namespace ckptfs::fs

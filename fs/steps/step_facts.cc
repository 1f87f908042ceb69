#include "fs/steps/step_facts.h"

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "fs/views/files_of_step.h"
#include "io/lease.h"
#include "meta/care/digests.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/deepspeed_names.h"
#include "meta/formats/manifest.h"
#include "meta/formats/trainer_state.h"
#include "meta/names.h"
#include "meta/steps/save_plan.h"
#include "meta/time.h"

namespace ckptfs::fs {
namespace {

using meta::wall_time;
using meta::formats::Completeness;

constexpr size_t kMostLatest = 4096;  // bytes of `latest`

timespec later_of(const timespec& a, const timespec& b) { return meta::later(a, b) ? a : b; }

// The whole of a small file; ENOENT where there is none.
Result<std::string> read_file(const meta::Tree& tree, meta::InodeNumber folder, const std::string& name, size_t most) {
  TRY_ASSIGN(const meta::InodeNumber file, tree.child(folder, name));
  TRY_ASSIGN(const meta::Attributes attributes, tree.attributes(file));
  if (!attributes.record.is_regular()) return Error(ENOENT);
  if (static_cast<uint64_t>(attributes.stat.st_size) > most) return Error(EFBIG);
  TRY_ASSIGN(const io::Fd blob, tree.open_blob(file, O_RDONLY));
  std::string text(static_cast<size_t>(attributes.stat.st_size), '\0');
  TRY_ASSIGN(const size_t got, io::read_full(blob.get(), std::as_writable_bytes(std::span(text)), 0));
  text.resize(got);
  return text;
}

// ENOENT: the step has no such file. Else as it says.
Result<std::optional<double>> metric_in(const meta::Tree& tree, meta::InodeNumber step, const std::string& metric) {
  const std::string name = meta::formats::kTrainerStateName;
  TRY_ASSIGN(const meta::InodeNumber file, tree.child(step, name));
  TRY_ASSIGN(const meta::Attributes attributes, tree.attributes(file));
  if (!attributes.record.is_regular()) return Error(ENOENT);
  TRY_ASSIGN(const io::Fd blob, tree.open_blob(file, O_RDONLY));
  auto found =
      meta::formats::metric_in_trainer_state(blob.get(), static_cast<uint64_t>(attributes.stat.st_size), metric);
  if (found) return found;
  return Error(found.error().errno_value(), name + ": " + found.error().message());
}

// Of a file's name, or of the folder of its rank.
std::optional<unsigned> rank_of_path(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (const auto states = meta::formats::parse_states_name(path.substr(slash + 1))) return states->rank;
  if (const auto saved = meta::formats::rank_of_manifest(path)) return saved;
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view folder = path.substr(0, slash);
  return meta::rank_of(folder.substr(folder.rfind('/') + 1));
}

unsigned ranks_of(const meta::formats::StepFiles& files) {
  std::set<unsigned> ranks;
  for (const auto& file : files.list()) {
    if (const auto rank = rank_of_path(file.path)) ranks.insert(*rank);
  }
  return static_cast<unsigned>(ranks.size());
}

bool is_swap_state_only(const meta::formats::StepFiles& files) {
  return std::all_of(files.list().begin(), files.list().end(), [](const auto& file) {
    return file.path.starts_with(meta::kTensorsName) || file.path.starts_with(meta::kParamsName);
  });
}

// It was whole when the save returned. `names`: when one came or went in it, last.
meta::formats::CompletenessJudgement judge_save(const meta::StepRecord& record, const timespec& names) {
  if (!meta::later(names, record.saved)) return {Completeness::complete, {}};
  return {Completeness::unknown, "files came or went since it was saved"};
}

// One step that cannot be judged keeps no other from it.
StepStatus uninspected(const meta::DirectoryEntry& entry, const Error& error) {
  StepStatus look;
  look.inode = entry.inode;
  look.facts.tag = entry.name;
  look.facts.number = meta::step_number(entry.name).value_or(0);
  look.reason = error.message();
  look.failed = true;
  return look;
}

}  // namespace

Result<> StepFactsFinder::start() {
  TRY_ASSIGN(clock_, meta::StoreClock::load(store_.index()));
  return success();
}

Result<StepFactsFinder::Changes> StepFactsFinder::changes_below(meta::InodeNumber folder, unsigned depth) const {
  constexpr unsigned kDeepest = 256;  // who walks them calls itself for each
  if (depth > kDeepest) return Error(ELOOP, tree_.path_of(folder) + ": folders lie too deep in each other");
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(folder));
  Changes changes{record.mtime, later_of(record.mtime, record.ctime)};
  TRY_ASSIGN(const auto entries, tree_.list(folder));
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    TRY_ASSIGN(const Changes below, changes_below(entry.inode, depth + 1));
    changes.names = later_of(changes.names, below.names);
    changes.any = later_of(changes.any, below.any);
  }
  return changes;
}

// By a mapping whose descriptor is closed, too.
Result<bool> StepFactsFinder::is_mapped_for_writing(meta::InodeNumber step) const {
  bool written = false;
  TRY(meta::for_each_file(tree_, step, [&](const auto&, meta::InodeNumber file) -> Result<> {
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file));
    if (written || !record.is_live_file() || tree_.is_damaged(file)) return success();
    TRY_ASSIGN(const io::Fd blob, tree_.open_blob(file, O_RDONLY));
    TRY_ASSIGN(written, io::has_writer(blob.get()));
    return success();
  }));
  return written;
}

// Of a file that does not hold what was written, as far as is known: its name, and why. Files that are gone are left
// out.
Result<std::optional<std::string>> StepFactsFinder::damage_in(const std::vector<meta::InodeNumber>& files) const {
  for (const meta::InodeNumber file : files) {
    std::string damage;
    if (tree_.is_damaged(file)) damage = "its data is missing or short";
    if (const auto record = tree_.inode(file); record && !tree_.write_back().check(record.value().blob)) {
      damage = "what was written to it did not reach the disk";
    }
    if (const auto failed = write_errors_.last(file)) damage = "a write to it failed: " + *failed;
    if (damage.empty()) {
      const auto record = tree_.inode(file);
      const auto checked = record ? tree_.refuse_suspect(file, record.value()) : Result<>(success());
      if (!checked) return std::optional(checked.error().message());
      const auto verdict = meta::known_verdict(store_, file);
      if (!verdict && verdict.error().errno_value() != ENOENT) return verdict.error();
      if (verdict && verdict.value() == meta::Verdict::damaged) damage = "it no longer holds what was written";
    }
    if (!damage.empty()) return std::optional(tree_.path_of(file) + ": " + damage);
  }
  return std::optional<std::string>();
}

StepFactsFinder::Used StepFactsFinder::used() const {
  return files_.used_since(std::chrono::steady_clock::now() - 2 * quiet_);
}

Result<bool> StepFactsFinder::holds_any(meta::InodeNumber step, const Used& used) const {
  bool found = false;
  TRY(meta::for_each_file(tree_, step, [&](const auto&, meta::InodeNumber file) -> Result<> {
    found = found || used.contains(file);
    return success();
  }));
  return found;
}

Result<bool> StepFactsFinder::is_in_use(meta::InodeNumber step) const { return holds_any(step, used()); }

// In a step, or in what may become one: the log of a run that lies beside them is written all the time.
bool StepFactsFinder::is_written(meta::InodeNumber series) const {
  const std::vector<meta::InodeNumber> written = files_.open_for_writing();
  return std::any_of(written.begin(), written.end(), [&](meta::InodeNumber at) {
    meta::InodeNumber below = 0;
    while (at != series && at != meta::kRootInode && at != 0) {
      const auto record = tree_.inode(at);
      below = std::exchange(at, record ? record.value().parent : 0);
    }
    if (at != series || below == 0) return false;
    const auto record = tree_.inode(below);
    if (!record || !record.value().is_dir()) return false;
    const auto step = meta::is_step(tree_, below);
    const std::string path = tree_.path_of(below);
    return !step || step.value() || meta::step_number(path.substr(path.rfind('/') + 1)).has_value();
  });
}

void StepFactsFinder::forget(meta::InodeNumber inode) {
  const io::MutexLock lock(mutex_);
  known_.erase(inode);
}

std::optional<StepFactsFinder::CachedFacts> StepFactsFinder::known_as(meta::InodeNumber step,
                                                                      const io::Digest& fingerprint) {
  const io::MutexLock lock(mutex_);
  const auto known = known_.find(step);
  return known != known_.end() && known->second.fingerprint == fingerprint ? std::optional(known->second)
                                                                           : std::nullopt;
}

// As it was judged before, if no file has changed.
Result<StepFactsFinder::CachedFacts> StepFactsFinder::judge(meta::InodeNumber step, const Changes& changes,
                                                            const Used& used, StepStatus& look) {
  const views::AskWriters ask_writers = [this](meta::InodeNumber inode, int) {
    return views::Writers{files_.open_for_writing(inode), false, {}};
  };
  views::FilesOfStep files(store_, ask_writers, stopping_);
  TRY(files.collect(step));
  look.changed = std::max(look.changed, wall_time(files.time()));
  look.files = files.inodes().size();
  look.bytes = files.bytes();
  look.facts.in_use = std::ranges::any_of(files.inodes(), [&used](auto inode) { return used.contains(inode); });
  CachedFacts known;
  if (!files.problems().empty()) {
    known.judgement = {Completeness::incomplete, files.problems().front().file + ": it is being written"};
    return known;
  }
  const std::string fingerprint = files.fingerprint() + (look.record.sealed ? "sealed" : "") +
                                  std::to_string(meta::nanoseconds(look.record.saved)) + ' ' +
                                  std::to_string(meta::nanoseconds(changes.names));
  known.fingerprint = io::digest_of(std::as_bytes(std::span(fingerprint)));
  TRY_ASSIGN(const auto damage, damage_in(files.inodes()));
  if (damage) {
    known.judgement = {Completeness::unknown, *damage};
    known.damaged = true;
    return known;
  }
  if (const auto before = known_as(step, known.fingerprint)) return *before;
  known.completed = files.time();
  known.ranks = ranks_of(files);
  known.saved_alone = look.record.source != 0 && is_swap_state_only(files);
  if (look.record.sealed) {
    known.judgement = {Completeness::complete, {}};
  } else if (known.saved_alone) {
    known.judgement = judge_save(look.record, changes.names);
  } else {
    const std::lock_guard turn(readings_);
    if (const auto meanwhile = known_as(step, known.fingerprint)) return *meanwhile;
    known.judgement = meta::formats::judge_completeness(files, meta::formats::read_checkpoint(files));
  }
  if (known.saved_alone) known.completed = look.record.saved;
  if (files.short_of()) return *files.short_of();
  if (known.judgement.completeness == Completeness::complete && !look.record.sealed && !known.saved_alone) {
    TRY_ASSIGN(known.mapped, is_mapped_for_writing(step));
  }
  if (known.mapped) {  // and may be so no more at the next look
    known.judgement = {Completeness::unknown, "a file of it is mapped for writing"};
    return known;
  }
  const io::MutexLock lock(mutex_);
  return known_[step] = known;
}

// By the store's clock, where rotation has seen the step as it is now. What rotation has not seen so has just changed.
// The wall clock tells where nobody watches.
std::chrono::seconds StepFactsFinder::quiet_of(const StepStatus& look, bool watches) const {
  std::chrono::nanoseconds quiet{};
  if (look.seen && look.seen->changed == look.changed) {
    quiet = clock().now() - look.seen->changed_at;
  } else if (!look.seen && !watches) {
    quiet = wall_time(meta::now()) - look.changed;
  }
  return std::chrono::duration_cast<std::chrono::seconds>(std::max(quiet, std::chrono::nanoseconds(0)));
}

// All that is new is of one moment: which of it is newer the files tell.
Result<> StepFactsFinder::see(meta::InodeNumber series, std::vector<StepStatus>& steps, bool watches) const {
  const meta::Moment now{wall_time(meta::now()), clock().now()};
  std::vector<std::pair<meta::InodeNumber, meta::SeenStep>> changed;
  for (StepStatus& step : steps) {
    const meta::SeenStep seen = meta::see_step(step.seen, series, step.changed, step.completed, now);
    if (!step.failed && step.seen != seen) changed.emplace_back(step.inode, seen);
    if (!step.failed) step.seen = seen;
    step.facts.seen = step.completed ? seen.completed_at : seen.changed_at;
  }
  return watches ? meta::note_seen(store_, clock(), changed) : Result<>(success());
}

Result<StepStatus> StepFactsFinder::inspect_step(meta::InodeNumber step, const std::string& tag,
                                                 const Circumstances& now) {
  if (stopping_) return Error(ECANCELED);
  StepStatus look;
  look.inode = step;
  TRY_ASSIGN(const meta::InodeRecord folder, tree_.inode(step));
  look.owner = folder.uid;
  TRY_ASSIGN(const auto record, store_.index().find_step(step));
  look.record = record.value_or(meta::StepRecord());
  TRY_ASSIGN(const Changes changes, changes_below(step));
  look.changed = wall_time(changes.any);
  TRY_ASSIGN(const CachedFacts known, judge(step, changes, now.used, look));
  TRY_ASSIGN(look.seen, meta::seen_step(store_, step));
  look.quiet = quiet_of(look, now.watches);
  const bool partial = meta::is_partial_name(tag);
  look.reason = partial ? "it was not committed" : known.judgement.reason;
  look.ranks = known.ranks;
  look.damaged = known.damaged;
  look.fingerprint = known.fingerprint;
  const Completeness completeness = partial ? Completeness::incomplete : known.judgement.completeness;
  const bool complete = completeness == Completeness::complete;
  look.facts.tag = tag;
  look.facts.number = meta::number_of(tag, look.record);
  look.facts.completeness = completeness;
  if (complete) look.completed = wall_time(known.completed);
  look.facts.completed = look.completed.value_or(look.changed);
  look.facts.pinned = now.pinned.contains(step);
  look.facts.in_use = look.facts.in_use || known.mapped;
  const bool settled = look.record.sealed || known.saved_alone || look.quiet >= quiet_;
  if (complete && !settled) {
    look.facts.completeness = Completeness::incomplete;
    look.reason = "it was written " + std::to_string(look.quiet.count()) + " s ago";
    look.facts.in_use = true;
  }
  if (complete && settled && !known.saved_alone) saves_.complete(step, tree_.path_of(step), look.changed);
  return look;
}

Result<StepStatus> StepFactsFinder::inspect_step(meta::InodeNumber step) {
  TRY_ASSIGN(const bool is_step, meta::is_step(tree_, step));
  const std::string path = tree_.path_of(step);
  if (!is_step) return Error(EINVAL, path + ": it is no step");
  TRY_ASSIGN(Inodes pinned, tree_.pinned_folders());
  return inspect_step(step, path.substr(path.rfind('/') + 1), {used(), std::move(pinned)});
}

// What was made durable is, until its files are others. So is a file with digests that are current, which were taken
// after it was synced, and a frozen one.
Result<> StepFactsFinder::make_durable(const StepStatus& look) {
  const auto is_same = [&](const auto& known) REQUIRES(mutex_) {
    return known != known_.end() && known->second.fingerprint == look.fingerprint;
  };
  {
    const io::MutexLock lock(mutex_);
    const auto known = known_.find(look.inode);
    if (is_same(known) && known->second.durable && tree_.write_back().suspects() == 0) return success();
  }
  TRY(meta::for_each_file(tree_, look.inode, [this](const auto&, meta::InodeNumber file) -> Result<> {
    if (stopping_) return Error(ECANCELED);
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file));
    if (auto trusted = tree_.refuse_suspect(file, record); !trusted) return trusted;
    if (!record.is_live_file()) return success();
    TRY_ASSIGN(const meta::Verdict verdict, meta::known_verdict(store_, file));
    return verdict == meta::Verdict::ok ? Result<>(success()) : file_sync_.sync_file(file);
  }));
  const io::MutexLock lock(mutex_);
  if (const auto known = known_.find(look.inode); is_same(known)) known->second.durable = true;
  return success();
}

const char* state_of(const StepStatus& step) {
  if (step.record.being_removed) return "being removed";
  if (step.damaged) return "damaged";
  if (step.record.sealed) return "sealed";
  switch (step.facts.completeness) {
    case Completeness::complete:
      return "complete";
    case Completeness::incomplete:
      return "incomplete";
    case Completeness::unknown:
      break;
  }
  return "unknown";
}

Result<std::optional<double>> StepFactsFinder::metric_of(const StepStatus& look, const std::string& name) {
  const auto set = store_.index().xattr(look.inode, meta::kMetricXattr + name);
  if (set) return meta::parse_metric(set.value());
  if (set.error().errno_value() != ENOENT) return set.error();
  const auto is_known = [&](const auto& known) REQUIRES(mutex_) {
    return known != known_.end() && known->second.fingerprint == look.fingerprint;
  };
  {
    const io::MutexLock lock(mutex_);
    const auto known = known_.find(look.inode);
    if (is_known(known) && known->second.metrics.contains(name)) return known->second.metrics.at(name);
  }
  auto found = metric_in(tree_, look.inode, name);
  if (!found && found.error().errno_value() == ENOENT) found = std::optional<double>();
  // What the file itself is the reason for, stays so: it is not read again.
  const int failed = found ? 0 : found.error().errno_value();
  if (failed != 0 && failed != EBADMSG && failed != EFBIG) return found;
  const io::MutexLock lock(mutex_);
  if (const auto known = known_.find(look.inode); is_known(known)) known->second.metrics.insert_or_assign(name, found);
  return found;
}

Result<std::optional<std::string>> StepFactsFinder::latest_of(meta::InodeNumber series) const {
  const auto file = tree_.child(series, "latest");
  if (!file && file.error().errno_value() == ENOENT) return std::optional<std::string>();
  TRY(file);
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file.value()));
  if (record.is_dir()) return std::optional<std::string>();  // just a directory
  std::string tag = record.target;
  if (!S_ISLNK(record.mode)) {
    TRY_ASSIGN(tag, read_file(tree_, series, "latest", kMostLatest));
  }
  tag.erase(tag.find_last_not_of(" \t\r\n/") + 1);
  tag.erase(0, tag.find_first_not_of(" \t\r\n"));
  tag.erase(0, tag.rfind('/') + 1);
  if (tag.empty()) return Error(ENODATA, "it is empty");
  return std::optional(tag);
}

// Whoever may make a name in the series might make that one.
Result<> StepFactsFinder::note_unclear(meta::InodeNumber series, const Error& error, SeriesStatus& look) const {
  look.unclear = "nobody can tell what `latest` names: " + error.message();
  const auto file = tree_.child(series, "latest");
  if (!file && file.error().errno_value() == ENOENT) return success();  // it was removed this moment
  TRY(file);
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file.value()));
  if (record.uid != 0 && record.uid != look.owner) look.unclear_to = record.uid;
  return success();
}

Result<SeriesStatus> StepFactsFinder::inspect_series(meta::InodeNumber series, const std::string& metric,
                                                     bool watches) {
  SeriesStatus look;
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(series));
  look.owner = record.uid;
  look.changed = wall_time(later_of(record.mtime, record.ctime));
  look.written = is_written(series);
  const auto latest = latest_of(series);
  if (latest) look.latest = latest.value();
  if (!latest) TRY(note_unclear(series, latest.error(), look));
  Circumstances now{used(), {}, watches};
  TRY_ASSIGN(now.pinned, tree_.pinned_folders());
  TRY_ASSIGN(const auto entries, tree_.list(series));
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    const auto step = meta::is_step(tree_, entry.inode, entry.name);
    if (!step && step.error().errno_value() == ENOENT) continue;  // it was removed this moment
    TRY(step);
    if (!step.value()) {
      const bool named = meta::step_number(entry.name).has_value();
      const auto changes = named ? changes_below(entry.inode) : Error(ENOENT);
      if (changes) look.changed = std::max(look.changed, wall_time(changes.value().names));
      look.others.push_back({entry.name, named ? "it holds no checkpoint file" : "it has no step's name"});
      continue;
    }
    auto found = inspect_step(entry.inode, entry.name, now);
    const int failed = found ? 0 : found.error().errno_value();
    if (failed == ENOENT) continue;
    if (failed == ECANCELED) return found.error();
    if (!found) found = uninspected(entry, found.error());
    StepStatus& one = found.value();
    look.changed = std::max(look.changed, one.changed);
    if (one.record.being_removed) {
      look.others.push_back({entry.name, "it is being removed"});
      continue;
    }
    one.facts.latest = latest && latest.value() == entry.name;
    if (!metric.empty()) {
      const auto told = metric_of(one, metric);
      one.facts.untold = !told;
      if (told) one.facts.metric = told.value();
      if (!told && one.reason.empty()) one.reason = metric + " cannot be told: " + told.error().message();
    }
    look.steps.push_back(std::move(one));
  }
  TRY(see(series, look.steps, watches));
  return look;
}

}  // namespace ckptfs::fs

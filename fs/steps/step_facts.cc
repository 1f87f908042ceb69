#include "fs/steps/step_facts.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include "fs/views/files_of_step.h"
#include "io/fault.h"
#include "io/lease.h"
#include "meta/care/digests.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/manifest.h"
#include "meta/formats/step_names.h"
#include "meta/formats/thinning.h"
#include "meta/formats/trainer_state.h"
#include "meta/names.h"
#include "meta/time.h"

namespace ckptfs::fs {
namespace {

using meta::wall_time;
using meta::formats::Completeness;

timespec later_of(const timespec& a, const timespec& b) { return meta::later(a, b) ? a : b; }

// What `read` finds in the step's trainer_state.json. ENOENT: the step has no such file.
template <class Read>
auto from_trainer_state(const meta::Tree& tree, meta::InodeNumber step, const Read& read) -> decltype(read(0, 0)) {
  TRY_ASSIGN(const meta::InodeNumber file, tree.child(step, meta::formats::kTrainerStateName));
  TRY_ASSIGN(const meta::Attributes attributes, tree.attributes(file));
  if (!attributes.record.is_regular()) return Error(ENOENT);
  TRY_ASSIGN(const io::Fd blob, tree.open_blob(file, O_RDONLY));
  return read(blob.get(), static_cast<uint64_t>(attributes.stat.st_size));
}

// The rank that a file's name tells, or the name of its folder.
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

// The step was whole when the save returned. `names`: when a name came or went in it last.
meta::formats::CompletenessJudgement judge_save(const meta::StepRecord& record, const timespec& names) {
  if (!meta::later(names, record.saved)) return {Completeness::complete, {}};
  return {Completeness::unknown, "files came or went since it was saved"};
}

// A sealed step is complete, unless only its weights were kept.
meta::formats::CompletenessJudgement judge_by_content(const meta::formats::StepFiles& files, bool sealed) {
  if (const auto thinned = meta::formats::judge_thinned(files)) return *thinned;
  if (sealed) return {Completeness::complete, {}};
  return meta::formats::judge_completeness(files, meta::formats::read_checkpoint(files));
}

// Does nothing in the files of a step that nobody will finish tell that it lacks something?
bool may_be_meant(const meta::formats::StepFiles& files, const meta::formats::CompletenessJudgement& judgement) {
  return meta::formats::judge_abandoned(files, judgement, {}).completeness == Completeness::unknown;
}

// The status of a step that cannot be inspected, so that the other steps of the series are inspected all the same.
StepStatus uninspected(const meta::Tree& tree, const meta::DirectoryEntry& entry, const Error& error) {
  StepStatus status;
  status.inode = entry.inode;
  if (const auto folder = tree.inode(entry.inode)) status.facts.owner = folder.value().uid;
  status.facts.tag = entry.name;
  status.facts.number = meta::last_number_in(entry.name).value_or(0);
  status.reason = error.message();
  status.failed = true;
  const int code = error.errno_value();
  status.passing = code == EMFILE || code == ENFILE || code == ENOMEM;
  return status;
}

// Any user who may make names in the series might have made a tracker file.
Result<> find_latest(const meta::Tree& tree, meta::InodeNumber series, SeriesStatus& status) {
  status.latest = latest_of(tree, series);
  for (const auto& [tracker, why] : status.latest.unread) {
    TRY_ASSIGN(const auto file, none_if_gone(tree.child(series, tracker)));
    if (!file) continue;  // it was removed this moment
    TRY_ASSIGN(const meta::InodeRecord record, tree.inode(*file));
    const bool everybodys = record.uid == 0 || record.uid == status.owner;
    (everybodys ? status.unclear : status.unclear_to[record.uid]) =
        "nobody can tell what `" + tracker + "` names: " + why;
  }
  return success();
}

// Did it first write after the last checkpoint file was written? Then it has added notes. In doubt it is a saver.
bool only_noted(const meta::StepWriter& writer, const SaveTimes& times) {
  constexpr std::chrono::seconds kCoarse{1};  // the kernel's times of files lag behind
  return writer.since != meta::WallTime() && times.saved_at != meta::WallTime() &&
         writer.since > times.saved_at + kCoarse;
}

// Who saved a step, or has written to it since. A process that cannot be seen from `here` counts as none.
void find_runs(SeriesStatus& status, const std::string& here) {
  std::map<meta::Process, bool> lives;
  for (StepStatus& step : status.steps) {
    for (const auto* const writers : {&step.ledger.savers, &step.ledger.writers}) {
      for (const meta::StepWriter& one : *writers) {
        if (!one.is_run() || one.place != here) continue;
        const auto [known, is_new] = lives.try_emplace(one.process);
        if (is_new) known->second = !meta::has_ended(one.process);
        if (!known->second) continue;
        step.facts.runs.insert(one.process);
        if (!only_noted(one, step.times)) step.facts.savers.insert(one.process);
      }
    }
  }
}

}  // namespace

std::vector<const StepStatus*> SeriesStatus::newest(const meta::Holds& holds) const {
  std::vector<meta::StepFacts> facts;
  for (const StepStatus& step : steps) facts.push_back(step.facts);
  std::vector<const StepStatus*> found;
  for (const size_t at : meta::newest_of(facts, holds)) found.push_back(&steps[at]);
  return found;
}

std::string why_no_steps(const SeriesStatus& series) {
  if (!series.steps.empty()) return {};
  const auto has_number = [](const NoStep& one) {
    return !one.was_step && std::isdigit(static_cast<unsigned char>(one.name.back())) != 0;
  };
  const auto found = std::ranges::find_if(series.others, has_number);
  if (found == series.others.end()) return {};
  return "no folder in it is a step (" + found->name + ": " + found->reason +
         "); steps have names like checkpoint-100, global_step100 or step_100. Others can be declared: ckptfs policy "
         "SERIES --set steps='iter_*' --set complete_when=FILE";
}

Result<> StepFactsFinder::start() {
  TRY_ASSIGN(clock_, meta::StoreClock::load(store_.index()));
  return success();
}

Result<StepFactsFinder::Changes> StepFactsFinder::changes_in(meta::InodeNumber top) const {
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(top));
  Changes changes{record.mtime, later_of(record.mtime, record.ctime)};
  TRY(meta::visit_folders(tree_, top, [&changes](auto, const meta::InodeRecord& folder) {
    changes.names = later_of(changes.names, folder.mtime);
    changes.any = later_of(changes.any, later_of(folder.mtime, folder.ctime));
    return true;
  }));
  return changes;
}

// Finds mappings whose descriptor is closed, too.
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

// The name of a file that is known not to hold what was written to it, and why. None: there is no such file. Files that
// are gone are left out.
Result<std::optional<std::string>> StepFactsFinder::damage_in(const std::vector<meta::InodeNumber>& files) const {
  for (const meta::InodeNumber file : files) {
    std::string damage;
    if (tree_.is_damaged(file)) damage = "its data is missing or short";
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

StepFactsFinder::Inodes StepFactsFinder::used() const {
  return files_.used_since(std::chrono::steady_clock::now() - 2 * quiet_);
}

Result<bool> StepFactsFinder::is_in_use(meta::InodeNumber step) const {
  const Inodes lately = used();
  bool found = false;
  TRY(meta::for_each_file(tree_, step, [&](const auto&, meta::InodeNumber file) -> Result<> {
    found = found || lately.contains(file);
    return success();
  }));
  return found;
}

// Is a file written in a step, or in a directory that may become one? Files beside the steps do not count, since the
// log of a run is written all the time.
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
    const auto named = meta::may_be_step(tree_, series, meta::name_of(tree_, below));
    return !step || step.value() || !named || named.value();
  });
}

void StepFactsFinder::forget(meta::InodeNumber inode) {
  const io::MutexLock lock(mutex_);
  known_.erase(inode);
}

StepFactsFinder::CachedFacts* StepFactsFinder::known_as(meta::InodeNumber step, const io::Digest& fingerprint) {
  const auto known = known_.find(step);
  return known != known_.end() && known->second.fingerprint == fingerprint ? &known->second : nullptr;
}

std::optional<StepFactsFinder::CachedFacts> StepFactsFinder::kept_of(meta::InodeNumber step,
                                                                     const io::Digest& fingerprint) {
  const io::MutexLock lock(mutex_);
  const CachedFacts* const known = known_as(step, fingerprint);
  return known == nullptr ? std::nullopt : std::optional(*known);
}

// None: the step has to be read. Stores through a mapping can leave the fingerprint as it is. So the facts of a step
// that was mapped for writing hold until it no longer is.
Result<std::optional<StepFactsFinder::CachedFacts>> StepFactsFinder::cached(meta::InodeNumber step,
                                                                            const io::Digest& fingerprint) {
  const auto facts = kept_of(step, fingerprint);
  if (!facts || !facts->mapped) return facts;
  TRY_ASSIGN(const bool mapped, is_mapped_for_writing(step));
  return mapped ? facts : std::nullopt;
}

Result<StepFactsFinder::CachedFacts> StepFactsFinder::judge(meta::InodeNumber step, const Changes& changes,
                                                            const Declared& declared, const Inodes& used,
                                                            StepStatus& status) {
  const views::AskWriters ask_writers = [this](meta::InodeNumber inode, int) {
    return views::Writers{files_.open_for_writing(inode), false, {}};
  };
  views::FilesOfStep files(store_, ask_writers, stopping_);
  TRY(files.collect(step));
  status.changed = std::max(status.changed, wall_time(files.time()));
  status.saved = wall_time(files.saved_time());
  status.files = files.inodes().size();
  status.bytes = files.bytes();
  status.facts.in_use = std::ranges::any_of(files.inodes(), [&used](auto inode) { return used.contains(inode); });
  CachedFacts known;
  if (!files.problems().empty()) {
    known.judgement = {Completeness::incomplete, files.problems().front().file + ": it is being written"};
    return known;
  }
  const std::string fingerprint =
      files.fingerprint() + (status.record.sealed ? "sealed" + declared.complete_when : "") +
      (declared.whole ? "whole" : "") + std::to_string(meta::nanoseconds(status.record.saved)) + ' ' +
      std::to_string(meta::nanoseconds(changes.names));
  known.fingerprint = io::digest_of(std::as_bytes(std::span(fingerprint)));
  TRY_ASSIGN(const auto damage, damage_in(files.inodes()));
  if (damage) {  // never cached: each inspection asks
    known.judgement = {Completeness::unknown, *damage};
    known.damaged = true;
    return known;
  }
  const bool is_declared = !declared.complete_when.empty();
  TRY_ASSIGN(const auto before, cached(step, known.fingerprint));
  if (before && (before->probed || !is_declared)) return *before;
  known.touched = wall_time(files.time());
  // A note makes no step younger. Of a declared step nothing tells which files are notes.
  known.completed = is_declared ? files.time() : files.saved_time();
  const auto names = meta::formats::names_of(files.list());
  known.times = save_times_of(files, names);
  known.lacks_meta = meta::formats::lacks_meta_of_lightning(names);
  known.ranks = ranks_of(files);
  known.saved_alone = status.record.source != 0 && is_swap_state_only(files);
  TRY_ASSIGN(const auto entries, tree_.list(step));
  known.swap_only = meta::checkpoint_kind(entries) == meta::kSwapStateOnly;
  if (status.record.sealed && !meta::formats::index_of(files.list(), meta::formats::kThinnedName)) {
    // Who seals a step says that it is whole. That makes no checkpoint of a model, from which no training resumes.
    const bool model = names.weights && names.model_alone && !names.tells_files() && !declared.whole && !is_declared;
    known.judgement = {model ? Completeness::weights : Completeness::complete, {}};
  } else if (known.saved_alone) {
    known.judgement = judge_save(status.record, changes.names);
  } else {
    const std::lock_guard turn(readings_);
    TRY_ASSIGN(const auto meanwhile, cached(step, known.fingerprint));
    if (meanwhile && (meanwhile->probed || !is_declared)) return *meanwhile;
    TRY_ASSIGN(known.judgement, heed_symlinks(tree_, step, judge_by_content(files, status.record.sealed)));
    known.may_be_model = names.model_alone && may_be_meant(files, known.judgement);
  }
  if (known.saved_alone) known.completed = status.record.saved;
  if (files.short_of()) return *files.short_of();
  const bool counts = declared.whole || is_declared || meta::formats::is_whole(known.judgement.completeness);
  known.probed = counts || status.record.sealed || known.saved_alone;
  if (counts && !status.record.sealed && !known.saved_alone) TRY_SET(known.mapped, is_mapped_for_writing(step));
  if (known.mapped) known.judgement = {Completeness::unknown, "a file of it is mapped for writing"};
  const io::MutexLock lock(mutex_);
  return known_[step] = known;
}

// For how long nothing has changed in the step. If rotation has seen the step as it is now, the clock of the store
// tells. If rotation has seen the step otherwise, or has yet to see it, the step has just changed. If rotation never
// saw the step and does not watch the series, the wall clock tells.
std::chrono::seconds StepFactsFinder::quiet_of(const StepStatus& status, bool watches) const {
  std::chrono::nanoseconds quiet{};
  if (status.ledger.seen && status.ledger.seen->changed == status.changed) {
    quiet = clock().now() - status.ledger.seen->changed_at;
  } else if (!status.ledger.seen && !watches) {
    quiet = wall_time(meta::now()) - status.changed;
  }
  return std::chrono::duration_cast<std::chrono::seconds>(std::max(quiet, std::chrono::nanoseconds(0)));
}

// All changes that are seen now get the same moment. Which of the steps is newer, their files tell.
Result<> StepFactsFinder::see(meta::InodeNumber series, std::vector<StepStatus>& steps, bool watches) const {
  const meta::Moment now{wall_time(meta::now()), clock().now()};
  std::vector<std::pair<meta::InodeNumber, meta::SeenStep>> changed;
  for (StepStatus& step : steps) {
    const meta::SeenStep seen =
        meta::see_step(step.ledger.seen, series, step.changed, step.completed, step.touched, now);
    if (!step.failed && step.ledger.seen != seen) changed.emplace_back(step.inode, seen);
    if (!step.failed) step.ledger.seen = seen;
    step.facts.seen = step.completed ? seen.completed_at : seen.changed_at;
  }
  return watches ? meta::note_seen(store_, clock(), changed) : Result<>(success());
}

Result<StepStatus> StepFactsFinder::inspect_step(meta::InodeNumber step, const std::string& tag,
                                                 const Circumstances& now) {
  if (stopping_) return Error(ECANCELED);
  StepStatus status;
  status.inode = step;
  TRY_ASSIGN(const meta::InodeRecord folder, tree_.inode(step));
  status.facts.owner = folder.uid;
  TRY_ASSIGN(const auto record, store_.index().find_step(step));
  status.record = record.value_or(meta::StepRecord());
  TRY_ASSIGN(const Changes changes, changes_in(step));
  status.changed = wall_time(changes.any);
  TRY_ASSIGN(status.ledger, meta::ledger_of(store_, step));
  TRY_ASSIGN(const Declared declared, declared_of(tree_, step));
  TRY_ASSIGN(CachedFacts known, judge(step, changes, declared, now.used, status));
  const bool told = status.record.sealed || known.saved_alone;
  const bool as_it_was = is_as_it_was(known.times, status.ledger, known.judgement);
  if (!told && !as_it_was && !known.damaged && !known.mapped && known.fingerprint != io::Digest{})
    TRY_SET(known.judgement, heed_declared(store_, step, status.ledger, declared, std::move(known.judgement)));
  if (!told && !declared.whole) {
    known.judgement = heed_second_save(known.times, status.ledger, std::move(known.judgement));
    const bool whole = meta::formats::is_whole(known.judgement.completeness);
    if (whole && known.lacks_meta && tag.ends_with(".ckpt"))
      known.judgement = {Completeness::unknown, "meta.pt is not there, which Lightning writes last"};
  }
  status.quiet = quiet_of(status, now.watches);
  const bool aside = meta::is_set_aside_name(tag);
  const bool partial = meta::is_partial_name(tag) || aside;
  status.reason = known.judgement.reason;
  if (partial) status.reason = aside ? "it was set aside: " + status.reason : "it was not committed";
  if (known.saved_alone) status.saved = wall_time(status.record.saved);
  static_cast<StepContent&>(status) = known;
  const Completeness own = known.judgement.completeness;
  // That a step was set aside is no proof that a model is of no use, so no rule removes it.
  const bool in_doubt = aside && known.may_be_model;
  const Completeness completeness = partial && !in_doubt ? Completeness::incomplete : own;
  const bool complete = completeness == Completeness::complete;
  status.facts.tag = tag;
  status.facts.written_again = status.ledger.is_written_again();
  status.facts.saved = status.ledger.is_saved_in(folder.parent);
  status.facts.swap_only = known.swap_only;
  status.facts.number = meta::number_of(tag, status.record);
  status.facts.completeness = completeness;
  if (meta::formats::is_whole(completeness)) status.completed = wall_time(known.completed);
  status.facts.completed = status.completed.value_or(status.changed);
  status.facts.pinned = now.pinned.contains(step);
  status.facts.untold = known.damaged;
  status.facts.in_use = status.facts.in_use || known.mapped;
  const bool settled = status.record.sealed || known.saved_alone || status.quiet >= quiet_;
  if (complete && !settled) {
    status.facts.completeness = Completeness::incomplete;
    status.reason = fmt::format("it was written {} s ago; it is complete after {} s without a write",
                                status.quiet.count(), quiet_.count());
    status.facts.in_use = true;
  }
  if (complete && settled && !known.saved_alone) saves_.complete(step, tree_.path_of(step), status.changed);
  return status;
}

Result<StepStatus> StepFactsFinder::inspect_step(meta::InodeNumber step) {
  TRY_ASSIGN(const bool is_step, meta::is_step(tree_, step));
  if (!is_step) return Error(EINVAL, tree_.path_of(step) + ": it is no step");
  TRY_ASSIGN(Inodes pinned, tree_.pinned_folders());
  return inspect_step(step, meta::name_of(tree_, step), {used(), std::move(pinned)});
}

// A step that was made durable stays so until its files change. A file with current digests is durable, too, since it
// was synced before they were taken. So is a frozen file.
Result<> StepFactsFinder::make_durable(const StepStatus& status) {
  const auto kept = kept_of(status.inode, status.fingerprint);
  if (kept && kept->durable && tree_.write_back().suspects() == 0) return success();
  TRY(meta::for_each_file(tree_, status.inode, [this](const auto&, meta::InodeNumber file) -> Result<> {
    if (stopping_) return Error(ECANCELED);
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file));
    if (auto trusted = tree_.refuse_suspect(file, record); !trusted) return trusted;
    if (!record.is_live_file()) return success();
    TRY_ASSIGN(const meta::Verdict verdict, meta::known_verdict(store_, file));
    return verdict == meta::Verdict::ok ? Result<>(success()) : file_sync_.sync_file(file);
  }));
  const io::MutexLock lock(mutex_);
  if (CachedFacts* const known = known_as(status.inode, status.fingerprint)) known->durable = true;
  return success();
}

const char* state_of(const StepStatus& step) {
  if (step.record.being_removed) return "being removed";
  if (step.damaged) return "damaged";
  if (step.facts.completeness == Completeness::weights) return "weights";
  if (step.record.sealed) return "sealed";
  if (step.facts.is_complete()) return "complete";
  return step.facts.completeness == Completeness::incomplete ? "incomplete" : "unknown";
}

// The metric may be of another save than the weights, unless that one has written all files anew.
Result<> StepFactsFinder::refuse_metric_of_another(const StepStatus& status, const std::string& name) const {
  if (status.times.oldest.empty() || status.times.oldest_at > status.ledger.whole) return success();
  const auto later = from_trainer_state(tree_, status.inode, [&status](int file, uint64_t) -> Result<bool> {
    TRY_ASSIGN(const struct stat st, io::stat_fd(file));
    return status.ledger.whole < wall_time(st.st_ctim);
  });
  if (!later && !is_gone(later.error())) return later.error();
  if (!later || !later.value()) return success();
  return Error(EAGAIN,
               fmt::format("another run has written trainer_state.json since the step was whole; `setfattr -n {}{} -v "
                           "NUMBER STEP` says what counts",
                           meta::kMetricXattr, name));
}

Result<std::optional<double>> StepFactsFinder::metric_of(const StepStatus& status, const std::string& name) {
  const auto set = store_.index().xattr(status.inode, meta::kMetricXattr + name);
  if (set) return meta::parse_metric(set.value());
  if (set.error().errno_value() != ENOENT) return set.error();
  // No rule asks for the metric of another step, and what its file says would be cached for none.
  if (!meta::formats::is_whole(status.facts.completeness)) return std::optional<double>();
  if (status.ledger.is_written_again()) TRY(refuse_metric_of_another(status, name));
  const auto kept = kept_of(status.inode, status.fingerprint);
  if (kept && kept->metrics.contains(name)) return kept->metrics.at(name);
  TRY(io::fault_point("facts.before_metric"));
  const auto read = [&name](int file, uint64_t size) -> Result<std::optional<double>> {
    auto metric = meta::formats::metric_in_trainer_state(file, size, name);
    if (metric) return metric;
    return Error(metric.error().errno_value(),
                 std::string(meta::formats::kTrainerStateName) + ": " + metric.error().message());
  };
  auto found = from_trainer_state(tree_, status.inode, read);
  if (!found && is_gone(found.error())) found = std::optional<double>();
  // If the file itself is the reason, the answer stays so, and is cached.
  const int failed = found ? 0 : found.error().errno_value();
  if (failed != 0 && failed != EBADMSG && failed != EFBIG) return found;
  const io::MutexLock lock(mutex_);
  if (CachedFacts* const known = known_as(status.inode, status.fingerprint)) {
    known->metrics.insert_or_assign(name, found);
  }
  return found;
}

// ENOENT: the step has no such file.
Result<std::string> StepFactsFinder::best_model_of(const StepStatus& status) {
  const auto kept = kept_of(status.inode, status.fingerprint);
  if (kept && kept->best_model) return *kept->best_model;
  const auto read = [](int file, uint64_t size) { return meta::formats::best_model_in_trainer_state(file, size); };
  TRY_ASSIGN(std::string best, from_trainer_state(tree_, status.inode, read));
  const io::MutexLock lock(mutex_);
  if (CachedFacts* const known = known_as(status.inode, status.fingerprint)) known->best_model = best;
  return best;
}

// What an owner's newest steps say counts for his steps: the newest of all, the newest that was saved here, and the
// newest of each run. If one of them cannot be read, any step may be the one that it names.
void StepFactsFinder::find_best_models(SeriesStatus& status) {
  std::set<std::pair<uint32_t, std::string>> best;
  std::set<uint32_t> untold;  // owners
  std::set<const StepStatus*> newest;
  const auto add = [&](const meta::Holds& holds) {
    for (const StepStatus* const step : status.newest(holds)) newest.insert(step);
  };
  add(&meta::StepFacts::is_whole);
  add(&meta::StepFacts::is_saved);
  std::vector<meta::StepFacts> facts;
  for (const StepStatus& step : status.steps) facts.push_back(step.facts);
  for (const meta::Holds& holds : meta::complete_steps_of_runs(facts)) add(holds);
  for (const StepStatus* const step : newest) {
    const auto named = best_model_of(*step);
    if (named) best.emplace(step->facts.owner, named.value());
    if (!named && !is_gone(named.error())) untold.insert(step->facts.owner);
  }
  for (StepStatus& step : status.steps) {
    step.facts.best_model = best.contains({step.facts.owner, step.facts.tag});
    step.facts.untold = step.facts.untold || untold.contains(step.facts.owner);
  }
}

Result<SeriesStatus> StepFactsFinder::inspect_series(meta::InodeNumber series, const std::string& metric,
                                                     bool watches) {
  SeriesStatus status;
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(series));
  status.owner = record.uid;
  status.changed = wall_time(later_of(record.mtime, record.ctime));
  status.written = is_written(series);
  TRY(find_latest(tree_, series, status));
  Circumstances now{used(), {}, watches};
  TRY_ASSIGN(now.pinned, tree_.pinned_folders());
  TRY_ASSIGN(const auto entries, tree_.list(series));
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    TRY_ASSIGN(const auto step, none_if_gone(meta::is_step(tree_, entry.inode, entry.name)));
    if (!step) continue;  // it was removed this moment
    if (!*step) {
      const bool named = meta::step_number(entry.name).has_value();
      const auto changes = named ? changes_in(entry.inode) : Error(ENOENT);
      if (changes) status.changed = std::max(status.changed, wall_time(changes.value().names));
      status.others.push_back({entry.name, named ? "it holds no checkpoint file" : "it has no step's name"});
      continue;
    }
    auto found = inspect_step(entry.inode, entry.name, now);
    const int failed = found ? 0 : found.error().errno_value();
    if (failed == ENOENT) continue;
    if (failed == ECANCELED) return found.error();
    if (!found) found = uninspected(tree_, entry, found.error());
    StepStatus& one = found.value();
    status.changed = std::max(status.changed, one.changed);
    if (one.record.being_removed) {
      status.others.push_back({entry.name, "it is being removed", true});
      continue;
    }
    one.facts.latest = status.latest.names(entry.name);
    // Where a machine has all of a step, what is unknown may never be pushed, and stays for that reason alone.
    const bool may_be_pushed = !one.facts.is_unknown() || pushes_.has_slots(series);
    one.facts.unpushed = may_be_pushed && pushes_.is_unpushed(series, one.inode, one.fingerprint);
    if (!metric.empty()) {
      const auto told = metric_of(one, metric);
      one.facts.untold = one.facts.untold || !told;
      one.has_foreign_metric = !told && told.error().errno_value() == EAGAIN;
      if (told) one.facts.metric = told.value();
      if (!told && one.reason.empty()) one.reason = metric + " cannot be told: " + told.error().message();
    }
    status.steps.push_back(std::move(one));
  }
  TRY(see(series, status.steps, watches));
  find_runs(status, here_);
  find_best_models(status);
  return status;
}

}  // namespace ckptfs::fs

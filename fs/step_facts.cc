#include "fs/step_facts.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "fs/filesystem.h"
#include "fs/views/files_of_step.h"
#include "io/lease.h"
#include "meta/formats/checkpoint.h"
#include "meta/names.h"
#include "meta/save_plan.h"
#include "meta/time.h"

namespace ckptfs::fs {
namespace {

using meta::formats::Completeness;

constexpr uint64_t kMostState = uint64_t{64} << 20;  // bytes of trainer_state.json
constexpr size_t kMostLatest = 4096;                 // bytes of `latest`

meta::WallTime wall_time(const timespec& time) {
  return meta::WallTime(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

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

std::optional<double> finite(const nlohmann::json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

// Of {"log_history": [{"step": 500, "eval_loss": 1.5}, ...]} the last that has it.
std::optional<double> metric_in(const std::string& trainer_state, const std::string& name) {
  const auto state = nlohmann::json::parse(trainer_state, nullptr, false);
  if (!state.is_object() || !state.contains("log_history") || !state["log_history"].is_array()) return std::nullopt;
  const auto& history = state["log_history"];
  for (auto entry = history.rbegin(); entry != history.rend(); ++entry) {
    if (!entry->is_object() || !entry->contains(name)) continue;
    if (const auto number = finite((*entry)[name])) return number;
  }
  return std::nullopt;
}

}  // namespace

Result<timespec> StepFactsFinder::newest_change(meta::InodeNumber folder) const {
  TRY_ASSIGN(const meta::InodeRecord record, fs_.tree.inode(folder));
  timespec newest = later_of(record.mtime, record.ctime);
  TRY_ASSIGN(const auto entries, fs_.tree.list(folder));
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    TRY_ASSIGN(const timespec below, newest_change(entry.inode));
    newest = later_of(newest, below);
  }
  return newest;
}

// By a mapping whose descriptor is closed, too.
Result<bool> StepFactsFinder::is_mapped_for_writing(meta::InodeNumber step) const {
  bool written = false;
  TRY(meta::for_each_file(fs_.tree, step, [&](const auto&, meta::InodeNumber file) -> Result<> {
    TRY_ASSIGN(const meta::InodeRecord record, fs_.tree.inode(file));
    if (written || !record.is_live_file()) return success();
    TRY_ASSIGN(const io::Fd blob, fs_.tree.open_blob(file, O_RDONLY));
    TRY_ASSIGN(written, io::has_writer(blob.get()));
    return success();
  }));
  return written;
}

StepFactsFinder::Used StepFactsFinder::used() const {
  return fs_.files.used_since(std::chrono::steady_clock::now() - 2 * std::chrono::seconds(fs_.options.quiet_seconds));
}

Result<bool> StepFactsFinder::holds_any(meta::InodeNumber step, const Used& used) const {
  bool found = false;
  TRY(meta::for_each_file(fs_.tree, step, [&](const auto&, meta::InodeNumber file) -> Result<> {
    found = found || used.contains(file);
    return success();
  }));
  return found;
}

Result<bool> StepFactsFinder::is_in_use(meta::InodeNumber step) const { return holds_any(step, used()); }

// In a step, or in what may become one: the log of a run that lies beside them is written all the time.
bool StepFactsFinder::is_written(meta::InodeNumber series) const {
  const std::vector<meta::InodeNumber> written = fs_.files.open_for_writing();
  return std::any_of(written.begin(), written.end(), [&](meta::InodeNumber at) {
    meta::InodeNumber below = 0;
    while (at != series && at != meta::kRootInode && at != 0) {
      const auto record = fs_.tree.inode(at);
      below = std::exchange(at, record ? record.value().parent : 0);
    }
    if (at != series || below == 0) return false;
    const auto record = fs_.tree.inode(below);
    if (!record || !record.value().is_dir()) return false;
    const auto step = meta::is_step(fs_.tree, below);
    const std::string path = fs_.tree.path_of(below);
    return !step || step.value() || meta::step_number(path.substr(path.rfind('/') + 1)).has_value();
  });
}

void StepFactsFinder::forget(meta::InodeNumber inode) {
  const std::lock_guard lock(mutex_);
  known_.erase(inode);
}

// As it was judged before, if no file has changed.
Result<StepFactsFinder::Known> StepFactsFinder::judge(meta::InodeNumber step, const std::string& tag, StepLook& look) {
  const std::function<bool(meta::InodeNumber)> is_written = [this](meta::InodeNumber inode) {
    return fs_.files.open_for_writing(inode);
  };
  views::FilesOfStep files(fs_.store, is_written);
  TRY(files.collect(step));
  const std::string fingerprint =
      files.fingerprint() + (look.record.sealed ? "sealed" : "") + std::to_string(meta::nanoseconds(look.record.saved));
  look.changed = std::max(look.changed, wall_time(files.time()));
  if (!files.problems().empty()) {
    return Known{{}, {Completeness::incomplete, files.problems().front().file + ": it is being written"}, {}};
  }
  {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(step);
    if (known != known_.end() && known->second.fingerprint == fingerprint) return known->second;
  }
  Known known{fingerprint, {}, files.time()};
  const bool saved_alone =
      look.record.source != 0 && std::all_of(files.list().begin(), files.list().end(), [](const auto& file) {
        return file.path.starts_with(meta::kTensorsName) || file.path.starts_with(meta::kParamsName);
      });
  if (saved_alone) {
    known.judgement = {Completeness::complete, {}};
    known.completed = look.record.saved;
  } else {
    known.judgement = meta::formats::judge_completeness(files, meta::formats::read_checkpoint(files));
  }
  if (files.short_of()) return *files.short_of();
  if (look.record.sealed) known.judgement = {Completeness::complete, {}};
  if (known.judgement.completeness == Completeness::complete && !look.record.sealed && !saved_alone) {
    TRY_ASSIGN(const bool mapped, is_mapped_for_writing(step));
    if (mapped) return Known{{}, {Completeness::incomplete, tag + ": a file of it is mapped for writing"}, {}};
  }
  const std::lock_guard lock(mutex_);
  return known_[step] = known;
}

Result<StepLook> StepFactsFinder::look_at_step(meta::InodeNumber step, const std::string& tag, const Used& used) {
  StepLook look;
  look.inode = step;
  if (auto record = fs_.store.index().step(step)) {
    look.record = std::move(record).value();
  } else if (record.error().errno_value() != ENOENT) {
    return record.error();
  }
  TRY_ASSIGN(const timespec changed, newest_change(step));
  look.changed = wall_time(changed);
  TRY_ASSIGN(const Known known, judge(step, tag, look));
  const auto now = wall_time(meta::now());
  look.quiet =
      std::chrono::duration_cast<std::chrono::seconds>(std::max(now - look.changed, std::chrono::nanoseconds(0)));
  look.reason = known.judgement.reason;
  look.facts.tag = tag;
  look.facts.number = meta::number_of(tag, look.record);
  look.facts.completeness = known.judgement.completeness;
  look.facts.completed =
      known.judgement.completeness == Completeness::complete ? wall_time(known.completed) : look.changed;
  look.facts.pinned = look.record.pinned;
  TRY_ASSIGN(look.facts.in_use, holds_any(step, used));
  const bool settled =
      look.record.sealed || look.record.source != 0 || look.quiet >= std::chrono::seconds(fs_.options.quiet_seconds);
  if (look.facts.completeness == Completeness::complete && !settled) {
    look.facts.completeness = Completeness::incomplete;
    look.reason = "it was written " + std::to_string(look.quiet.count()) + " s ago";
    look.facts.in_use = true;
  }
  return look;
}

Result<StepLook> StepFactsFinder::look_at_step(meta::InodeNumber step) {
  TRY_ASSIGN(const bool is_step, meta::is_step(fs_.tree, step));
  const std::string path = fs_.tree.path_of(step);
  if (!is_step) return Error(EINVAL, path + ": it is no step");
  return look_at_step(step, path.substr(path.rfind('/') + 1), used());
}

const char* state_of(const StepLook& step) {
  if (step.record.being_removed) return "being removed";
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

Result<std::optional<double>> StepFactsFinder::metric_of(const StepLook& look, const std::string& name) const {
  const auto set = fs_.store.index().xattr(look.inode, meta::kMetricXattr + name);
  if (set) return meta::parse_metric(set.value());
  if (set.error().errno_value() != ENOENT) return set.error();
  const auto state = read_file(fs_.tree, look.inode, "trainer_state.json", kMostState);
  if (!state) return std::optional<double>();
  return metric_in(state.value(), name);
}

std::string StepFactsFinder::latest_of(meta::InodeNumber series) const {
  auto latest = read_file(fs_.tree, series, "latest", kMostLatest);
  if (!latest) return {};
  std::string& tag = latest.value();
  tag.erase(0, tag.find_first_not_of(" \t\r\n"));
  tag.erase(tag.find_last_not_of(" \t\r\n") + 1);
  return tag;
}

Result<SeriesLook> StepFactsFinder::look_at(meta::InodeNumber series, const std::string& metric) {
  SeriesLook look;
  TRY_ASSIGN(const meta::InodeRecord record, fs_.tree.inode(series));
  look.changed = wall_time(later_of(record.mtime, record.ctime));
  look.written = is_written(series);
  const std::string latest = latest_of(series);
  const Used used_now = used();
  TRY_ASSIGN(const auto entries, fs_.tree.list(series));
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    const auto step = meta::is_step(fs_.tree, entry.inode);
    if (!step && step.error().errno_value() == ENOENT) continue;  // it was removed this moment
    TRY(step);
    if (!step.value()) {
      const bool named = meta::step_number(entry.name).has_value();
      look.others.push_back({entry.name, named ? "it holds no checkpoint file" : "it has no step's name"});
      continue;
    }
    auto found = look_at_step(entry.inode, entry.name, used_now);
    if (!found && found.error().errno_value() == ENOENT) continue;
    TRY(found);
    StepLook& one = found.value();
    look.changed = std::max(look.changed, one.changed);
    if (one.record.being_removed) {
      look.others.push_back({entry.name, "it is being removed"});
      continue;
    }
    one.facts.latest = entry.name == latest;
    if (!metric.empty()) {
      TRY_ASSIGN(one.facts.metric, metric_of(one, metric));
    }
    look.steps.push_back(std::move(one));
  }
  return look;
}

}  // namespace ckptfs::fs

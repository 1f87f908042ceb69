#include "meta/remote/collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/fault.h"
#include "io/json.h"
#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/decide.h"
#include "meta/remote/inventory.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/part.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/tombstone.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kMostWarnings = 100;
constexpr std::chrono::seconds kTick{1};  // of servers' clocks
constexpr const char *kEndedKind = "ended", *kCollectedKind = "collected";
constexpr io::JsonBounds kCollectedBounds{.bytes = 4096, .values = 64, .text = 1024, .depth = 4};

class Collector {
 public:
  Collector(io::ObjectStore& store, const CollectorSettings& settings) : store_(store), settings_(settings) {}

  Result<CollectorReport> run();

 private:
  struct Undecided {
    Time last;                                                // when the newest of its parts was put
    uint32_t slots = 1;                                       // of the remote
    std::map<uint32_t, std::pair<Time, std::string>> newest;  // by slot: when it was put, and PushName::id
  };

  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  Result<> tell_time();
  Result<> read_commits();
  Result<> sort_push(const PushName& push, const ListedPush& listed);
  std::string what_is_missing(const CommittedStep& step, const PartList& parts) const;
  Result<> apply_rules();
  Result<> end_stale();
  Result<> end_push(const PushName& push);
  Result<> decide_save(const DecisionName& decision, const Undecided& undecided);
  Result<> delete_dead();
  Result<> end_dead(const PushName& push, const ListedPush& listed);
  Result<> delete_files(const PushName& push);
  Result<> delete_small();
  Result<> remove(const std::vector<std::string>& keys);
  Result<> end_uploads();
  Result<> sign();
  void warn_of_foreign();
  void warn(std::string words);
  bool is_past(Time since, std::chrono::seconds age) const { return since + age <= report_.now; }

  io::ObjectStore& store_;
  const CollectorSettings& settings_;
  CollectorReport report_;
  Inventory inventory_;
  std::atomic<uint64_t> deleted_ = 0;
  std::map<PushName, Time> dead_;  // since when
  std::set<PushName> committed_;   // that a commit names, also one that is gone
  std::map<DecisionName, Undecided> undecided_;
  std::set<DecisionName> damaged_;            // commits that stand, and lack files
  std::set<std::string, std::less<>> known_;  // folders of pushes that somebody knows
};

void Collector::warn(std::string words) {
  if (report_.warnings.size() < kMostWarnings) report_.warnings.push_back(std::move(words));
}

Result<> Collector::tell_time() {
  report_.now = std::chrono::system_clock::now();
  if (settings_.dry_run) return success();
  TRY_ASSIGN(const ServerTime time, ask_time(store_, settings_.id(), std::chrono::system_clock::now, limits()));
  report_.now = time.there;
  return success();
}

// Commits that are gone are not read if nothing is left of their tags.
Result<> Collector::read_commits() {
  std::set<std::string, std::less<>> tags;
  for (const auto& [push, listed] : inventory_.pushes) tags.insert(push.tag);
  for (const auto& [folder, files] : inventory_.folders) tags.insert(folder.substr(0, folder.rfind('.')));
  for (const CommittedStep& step : inventory_.steps) {
    known_.insert(step.decision.lead().folder());
    if (step.gone && !tags.contains(step.decision.tag)) continue;
    const auto read = fetch_commit(store_, step.decision, limits());
    if (!read && !is_damage(read.error())) return read.error();
    if (!read) {
      warn(fmt::format("{}: nothing of it is deleted", read.error().message()));
      damaged_.insert(step.decision);
      continue;
    }
    const Commit& commit = read.value();
    for (const PartName& part : commit.parts) {
      known_.insert(part.push.folder());
      committed_.insert(part.push);
      if (step.gone) dead_[part.push] = inventory_.decisions.gone.at(step.decision);
    }
    const std::string missing = step.gone ? std::string() : what_is_missing(step, commit.parts);
    if (missing.empty()) continue;
    TRY_ASSIGN(const bool gone, io::is_listed(store_, gone_key(step.decision), limits()));
    if (gone) continue;  // since the list began
    warn(missing);
    damaged_.insert(step.decision);
  }
  return success();
}

Result<> Collector::sort_push(const PushName& push, const ListedPush& listed) {
  known_.insert(push.folder());
  if (committed_.contains(push)) return success();
  if (listed.is_ended) dead_[push] = listed.changed;
  if (!listed.has_part) return success();
  const auto header = fetch_part_header(store_, push, limits());
  if (!header && header.error().errno_value() == ESTALE) return success();  // another collector was here
  if (!header && !is_damage(header.error())) return header.error();
  if (!header) {
    warn(fmt::format("{}: it is left alone", header.error().message()));
    return success();
  }
  const auto& decided = inventory_.decisions.decided;
  const auto decision = decided.find(header.value().decision);
  if (damaged_.contains(header.value().decision)) return success();
  if (decision != decided.end()) {
    dead_[push] = std::max(decision->second.changed, listed.changed);
    return success();
  }
  Undecided& undecided = undecided_[header.value().decision];
  undecided.slots = header.value().slots;
  undecided.last = std::max(undecided.last, listed.changed);
  auto& newest = undecided.newest[push.slot];
  newest = std::max(newest, std::pair(listed.changed, push.id));
  if (io::fault_value("undecided_collected")) dead_[push] = listed.changed;
  return success();
}

// In the list, in words; empty: nothing. A list takes a while, and a step may be committed meanwhile: it is judged at
// the next run.
std::string Collector::what_is_missing(const CommittedStep& step, const PartList& parts) const {
  if (!is_past(step.committed, kTick)) return {};
  for (const PartName& part : parts) {
    const auto listed = inventory_.pushes.find(part.push);
    const ListedFiles files = inventory_.files_of(part.push);
    const bool has_part = listed != inventory_.pushes.end() && listed->second.part_bytes == part.size;
    if (has_part && files.objects >= part.files && files.bytes >= part.bytes) continue;
    const std::string what =
        has_part ? fmt::format("{} of {} files are there", files.objects, part.files) : "its part is not there";
    return fmt::format(
        "{}/{}: {}, of {}: that step is damaged. It counts for no rule, and none removes it; ckptfs "
        "remote verify names the files",
        store_.url(), io::printable(step.decision.tag), what, io::printable(part.push.folder()));
  }
  return {};
}

Result<> Collector::apply_rules() {
  TRY_ASSIGN(const NumberedRules rules, read_rules(store_, limits()));
  std::vector<CommittedStep> steps = inventory_.steps;
  const bool all_count = io::fault_value("damaged_counts").has_value();
  std::erase_if(steps, [&](const CommittedStep& step) { return !all_count && damaged_.contains(step.decision); });
  const auto decisions = decide_by_rules(rules.rules, steps, report_.now);
  for (size_t at = 0; at < decisions.size(); ++at) {
    const CommittedStep& step = steps[at];
    if (step.gone || decisions[at].stays) continue;
    const std::string why = "no rule keeps it: " + decisions[at].why;
    if (!settings_.dry_run) TRY(remove_step(store_, step, settings_.host, why, limits()));
    report_.removed.push_back({step, why});
  }
  return success();
}

Result<> Collector::end_stale() {
  for (const auto& [decision, undecided] : undecided_) TRY(decide_save(decision, undecided));
  for (const auto& [push, listed] : inventory_.pushes) {
    const bool unfinished = listed.begun && !listed.has_part && !dead_.contains(push) && !committed_.contains(push);
    if (!unfinished) continue;
    if (is_past(std::max(*listed.begun, inventory_.files_of(push).newest), settings_.unfinished)) TRY(end_push(push));
  }
  return success();
}

// By a commit if it can be, else by a void once it is old. If somebody else decides at that moment, that counts.
Result<> Collector::decide_save(const DecisionName& decision, const Undecided& undecided) {
  std::vector<PushName> parts;
  for (const auto& [slot, newest] : undecided.newest) {
    if (slot == parts.size()) parts.push_back({decision.tag, slot, newest.second});
  }
  if (parts.size() == undecided.slots) {
    const auto judged = judge(store_, parts, settings_.folder, limits());
    if (!judged && !is_damage(judged.error())) return judged.error();
    if (judged && !judged.value().unwelcome) {
      if (!settings_.dry_run) TRY(commit(store_, decision, judged.value(), settings_.host, limits()));
      report_.committed.push_back(decision);
      return success();
    }
  }
  if (!is_past(undecided.last, settings_.unfinished)) return success();
  bool made = true;
  if (!settings_.dry_run) TRY_SET(made, io::make_object(store_, step_key(decision), void_text(), limits()));
  if (made) report_.ended.push_back(decision.lead());
  return success();
}

// Else it has a part after all.
Result<> Collector::end_push(const PushName& push) {
  bool made = true;
  if (!settings_.dry_run) {
    TRY_ASSIGN(made, io::make_object(store_, part_key(push), checked_line(new_document(kEndedKind)), limits()));
  }
  if (made) report_.ended.push_back(push);
  return success();
}

Result<> Collector::delete_dead() {
  for (const auto& [push, since] : dead_) {
    const auto found = inventory_.pushes.find(push);
    const ListedPush listed = found == inventory_.pushes.end() ? ListedPush() : found->second;
    const ListedFiles files = inventory_.files_of(push);
    const uint64_t objects = files.objects + (listed.has_part ? 1 : 0) + (listed.begun ? 1 : 0);
    if (objects == 0) continue;
    const bool goes = is_past(since, settings_.grace) || io::fault_value("grace_forgotten");
    CollectorReport::Amount& amount = goes ? report_.deleted : report_.waiting;
    amount.objects += objects;
    amount.bytes += files.bytes + (listed.has_part ? listed.part_bytes : 0);
    if (!goes || settings_.dry_run) continue;
    TRY(delete_files(push));
    TRY(end_dead(push, listed));
  }
  return success();
}

// What says that it was ended takes the place of a part, and stays, unless a commit names the push.
Result<> Collector::end_dead(const PushName& push, const ListedPush& listed) {
  std::vector<std::string> keys;
  if (listed.begun) keys.push_back(push_key(push));
  const bool is_named = committed_.contains(push) || io::fault_value("mark_deleted");
  if (is_named) keys.push_back(part_key(push));
  if (!is_named && listed.has_part) {
    const std::string text = checked_line(new_document(kEndedKind));
    TRY(store_.put(part_key(push), io::content_of(text), io::PutMode::replace, limits()));
  }
  return remove(keys);
}

// The part goes after them: a run that is killed before that goes on here the next day.
Result<> Collector::delete_files(const PushName& push) {
  std::vector<std::string> first, keys;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    (comes_last(object.key) ? first : keys).push_back(object.key);
    return success();
  };
  TRY(io::for_each_object(store_, push.folder(), note, limits()));
  TRY(remove(first));
  TRY(remove(keys));
  TRY(store_.remove_empty_folders(push.folder(), std::chrono::seconds(0), limits()));  // nobody makes it again
  return success();
}

// What said that pushes go on that have their part, and probes.
Result<> Collector::delete_small() {
  std::vector<std::string> keys;
  for (const auto& [push, listed] : inventory_.pushes) {
    const bool is_needless = listed.begun && listed.has_part && !dead_.contains(push);
    if (is_needless && is_past(std::max(*listed.begun, listed.changed), settings_.grace))
      keys.push_back(push_key(push));
  }
  for (const auto& [key, made] : inventory_.probes) {
    if (is_past(made, settings_.grace)) keys.push_back(key);
  }
  report_.deleted.objects += keys.size();
  return settings_.dry_run ? success() : remove(keys);
}

Result<> Collector::remove(const std::vector<std::string>& keys) {
  return io::for_each_parallel(keys.size(), settings_.parallel, [&](size_t at) -> Result<> {
    TRY(store_.remove(keys[at], limits()));
    settings_.progress({"deleting", ++deleted_});
    return success();
  });
}

// The credentials may not reach so far, and some servers have no list of uploads: then a rule of the bucket has to do
// it.
Result<> Collector::end_uploads() {
  const auto ended = store_.end_uploads(settings_.unfinished, limits());
  if (ended) report_.uploads = ended.value();
  if (ended || io::can_pass(ended.error()) || ended.error().errno_value() == ECANCELED) {
    return ended ? success() : Result<>(ended.error());
  }
  warn(fmt::format("uploads that were never completed stay there: {}; let a rule of the bucket end them",
                   ended.error().message()));
  return success();
}

// Who has run it, and when.
Result<> Collector::sign() {
  nlohmann::json object = new_document(kCollectedKind);
  object["host"] = settings_.host;
  const std::string text = checked_line(object);
  return store_.put(kCollectedKey, io::content_of(text), io::PutMode::replace, limits());
}

void Collector::warn_of_foreign() {
  for (const auto& [folder, files] : inventory_.folders) {
    if (known_.contains(folder) || !is_past(files.newest, settings_.grace)) continue;  // else a push that just begins
    warn(fmt::format("{}/{}: nobody knows of a push of that name: it is left alone", store_.url(),
                     io::printable(folder)));
  }
  for (const std::string& key : inventory_.foreign) {
    warn(fmt::format("{}/{} is none of ckptfs's: it is left alone", store_.url(), io::printable(key)));
  }
  if (inventory_.foreign_count > inventory_.foreign.size()) {
    warn(fmt::format("{}: {} objects in all are none of ckptfs's", store_.url(), inventory_.foreign_count));
  }
}

Result<CollectorReport> Collector::run() {
  TRY(tell_time());
  const auto listed = [this](uint64_t objects) { settings_.progress({"looking", objects}); };
  TRY_ASSIGN(inventory_, take_inventory(store_, listed, limits()));
  report_.objects = inventory_.objects;
  report_.bytes = inventory_.bytes;
  TRY(read_commits());
  for (const auto& [push, of_it] : inventory_.pushes) TRY(sort_push(push, of_it));
  TRY(apply_rules());
  TRY(end_stale());
  TRY(delete_dead());
  TRY(delete_small());
  if (!settings_.dry_run) {
    TRY(end_uploads());
    for (const char* const prefix : {kPushes, kParts}) {
      TRY(store_.remove_empty_folders(prefix, settings_.grace, limits()));
    }
    TRY(sign());
  }
  warn_of_foreign();
  return std::move(report_);
}

}  // namespace

Result<CollectorReport> collect(io::ObjectStore& store, const CollectorSettings& settings) {
  return Collector(store, settings).run();
}

Result<std::optional<LastCollection>> last_collection(io::ObjectStore& store, const io::RequestLimits& limits) {
  std::optional<LastCollection> last;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    if (object.key == kCollectedKey) last = LastCollection{object.changed, ""};
    return success();
  };
  TRY(io::for_each_object(store, kCollected, note, limits));
  if (!last) return last;
  const std::string object = store.url() + "/" + kCollectedKey;
  TRY_ASSIGN(const std::string text, io::get_text(store, kCollectedKey, kCollectedBounds.bytes, limits));
  TRY_ASSIGN(const auto document, with_name(object, parse_document(text, kCollectedKind, kCollectedBounds)));
  TRY_ASSIGN(last->host, with_name(object, text_field(document, "host")));
  return last;
}

}  // namespace ckptfs::meta::remote

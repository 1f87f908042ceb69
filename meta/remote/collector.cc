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
#include "meta/remote/inventory.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/tag_history.h"
#include "meta/remote/tombstone.h"

namespace ckptfs::meta::remote {
namespace {

using Time = std::chrono::system_clock::time_point;

constexpr size_t kMostWarnings = 100;
constexpr std::chrono::seconds kTick{1};  // of servers' clocks
constexpr const char *kEndedKind = "ended", *kCollectedKind = "collected";
constexpr io::JsonBounds kCollectedBounds{.bytes = 4096, .values = 64, .text = 1024, .depth = 4};

class Collector {
 public:
  Collector(io::ObjectStore& store, const CollectorSettings& settings) : store_(store), settings_(settings) {}

  Result<CollectorReport> run();

 private:
  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  Result<> tell_time();
  Result<> sort_pushes();
  Result<> sort_tag(const std::string& tag);
  bool is_whole(const CommittedStep& step, const PartList& parts);
  Result<> apply_rules();
  Result<> end_stale();
  Result<> end_push(const PushName& push);
  Result<> end_part(const PushName& push);
  Result<> delete_dead();
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
  std::map<PushName, Time> dead_;             // since when
  std::set<PushName> committed_;              // that a commit names, also one that is gone
  std::set<PushName> undecided_;              // parts that are in no commit, and may be
  std::map<std::string, uint64_t> next_;      // by tag: the number that is not decided
  std::set<DecisionName> damaged_;            // commits that stand, and lack files
  std::set<std::string, std::less<>> known_;  // folders of pushes that somebody knows
};

void Collector::warn(std::string words) {
  if (report_.warnings.size() < kMostWarnings) report_.warnings.push_back(std::move(words));
}

// By the store's clock: what time an object gets that is made now.
Result<> Collector::tell_time() {
  report_.now = std::chrono::system_clock::now();
  if (settings_.dry_run) return success();
  const std::string key = kProbe + settings_.id();
  TRY(io::make_object(store_, key, "what time is it?", limits()));
  std::optional<Time> made;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    if (object.key == key) made = object.changed;
    return success();
  };
  auto listed = io::for_each_object(store_, kProbe, note, limits());
  TRY(store_.remove(key, limits()));
  TRY(listed);
  if (!made)
    return Error(EIO, fmt::format("{}: {} was made, and is not listed: the list lags behind", store_.url(), key));
  report_.now = *made;
  return success();
}

// Tags of which nothing but decisions is left are not read: they have nothing to collect.
Result<> Collector::sort_pushes() {
  std::set<std::string, std::less<>> tags;
  for (const auto& [push, listed] : inventory_.pushes) tags.insert(push.tag);
  for (const auto& [folder, files] : inventory_.folders) tags.insert(folder.substr(0, folder.rfind('.')));
  for (const CommittedStep& step : inventory_.steps) {
    if (!step.gone) tags.insert(step.decision.tag);
  }
  for (const std::string& tag : tags) TRY(sort_tag(tag));
  return success();
}

Result<> Collector::sort_tag(const std::string& tag) {
  const auto found = inventory_.decisions.find(tag);
  const DecisionsOfTag decided = found == inventory_.decisions.end() ? DecisionsOfTag() : found->second;
  TagDecisions listed;
  for (const auto& [n, one] : decided.decided) {
    listed.undecided = n + 1;
    if (one.commit) listed.commits.push_back({{tag, n}, 0, one.changed, decided.gone.contains(n)});
  }
  TagHistory history;
  TRY(history.read(store_, tag, listed, limits()));
  next_[tag] = listed.undecided;
  for (const CommittedStep& step : listed.commits) {
    const PartList& parts = history.commits().at(step.decision.n);
    for (const PartName& part : parts) {
      known_.insert(part.push.folder());
      if (step.gone) dead_[part.push] = decided.gone.at(step.decision.n);
    }
    if (!step.gone && !is_whole(step, parts)) damaged_.insert(step.decision);
  }
  for (const auto& [push, n] : history.ended()) {
    known_.insert(push.folder());
    dead_[push] = decided.decided.at(n).changed;
  }
  for (auto at = inventory_.pushes.lower_bound({tag, 0, ""}); at != inventory_.pushes.end() && at->first.tag == tag;
       ++at) {
    const auto& [push, objects] = *at;
    known_.insert(push.folder());
    const bool is_committed = history.commit_of(push).has_value();
    if (is_committed) committed_.insert(push);
    if (objects.is_ended && !is_committed) dead_[push] = objects.changed;
    if (!objects.has_part || is_committed || dead_.contains(push)) continue;
    undecided_.insert(push);
    if (io::fault_value("undecided_collected")) dead_[push] = objects.changed;
  }
  return success();
}

// Is all of it in the list? A list takes a while, and a step may be committed meanwhile: it is judged at the next run.
bool Collector::is_whole(const CommittedStep& step, const PartList& parts) {
  if (!is_past(step.committed, kTick)) return true;
  for (const PartName& part : parts) {
    const auto listed = inventory_.pushes.find(part.push);
    const ListedFiles files = inventory_.files_of(part.push);
    const bool has_part = listed != inventory_.pushes.end() && listed->second.part_bytes == part.size;
    if (has_part && files.objects >= part.files && files.bytes >= part.bytes) continue;
    const std::string what =
        has_part ? fmt::format("{} of {} files are there", files.objects, part.files) : "its part is not there";
    warn(
        fmt::format("{}/{}: {}, of {}: that step is damaged. It counts for no rule, and none removes it; ckptfs remote "
                    "verify names the files",
                    store_.url(), io::printable(step.decision.tag), what, io::printable(part.push.folder())));
    return false;
  }
  return true;
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
  for (const auto& [push, listed] : inventory_.pushes) {
    if (undecided_.contains(push) && is_past(listed.changed, settings_.unfinished)) TRY(end_part(push));
    const bool unfinished = listed.begun && !listed.has_part && !dead_.contains(push) && !committed_.contains(push);
    if (!unfinished) continue;
    if (is_past(std::max(*listed.begun, inventory_.files_of(push).newest), settings_.unfinished)) TRY(end_push(push));
  }
  return success();
}

// Else it has a part after all.
Result<> Collector::end_push(const PushName& push) {
  bool made = true;
  if (!settings_.dry_run) {
    TRY_ASSIGN(made, io::make_object(store_, part_key(push), line_of(new_document(kEndedKind)), limits()));
  }
  if (made) report_.ended.push_back(push);
  return success();
}

// By a void at the number that is undecided. If somebody else decides at that moment, the next run tries again: the
// part may be committed by now.
Result<> Collector::end_part(const PushName& push) {
  const auto next = next_.find(push.tag);
  if (next == next_.end()) return success();
  if (!settings_.dry_run) {
    const std::string key = step_key({push.tag, next->second});
    TRY_ASSIGN(const bool made, io::make_object(store_, key, text_of(Void{{}, push}), limits()));
    if (!made) next_.erase(next);
    if (!made) return success();
  }
  ++next->second;
  report_.ended.push_back(push);
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
    std::vector<std::string> keys;
    if (listed.begun) keys.push_back(push_key(push));
    const bool part_goes = listed.has_part || io::fault_value("mark_deleted");
    if (part_goes) keys.push_back(part_key(push));  // else what took its place stays
    TRY(remove(keys));
  }
  return success();
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

// Votes at numbers that were decided over a day ago, what said that pushes go on that have their part, and probes.
Result<> Collector::delete_small() {
  std::vector<std::string> keys;
  for (const auto& [decision, slots] : inventory_.votes) {
    const auto tag = inventory_.decisions.find(decision.tag);
    if (tag == inventory_.decisions.end()) continue;
    const auto decided = tag->second.decided.find(decision.n);
    if (decided == tag->second.decided.end() || !is_past(decided->second.changed, settings_.grace)) continue;
    for (const uint32_t slot : slots) keys.push_back(vote_key(decision, slot));
  }
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
  const std::string text = line_of(object);
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
  TRY(sort_pushes());
  TRY(apply_rules());
  TRY(end_stale());
  TRY(delete_dead());
  TRY(delete_small());
  if (!settings_.dry_run) {
    TRY(end_uploads());
    for (const char* const prefix : {kPushes, kParts, kVotes}) {
      TRY(store_.remove_empty_folders(prefix, settings_.grace, limits()));
    }
    TRY(sign());
  }
  warn_of_foreign();
  return std::move(report_);
}

}  // namespace

std::chrono::seconds a_day() {
  const auto shorter = io::fault_value("remote_day");
  return shorter ? std::chrono::seconds(std::stoll(*shorter)) : std::chrono::hours(24);
}

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

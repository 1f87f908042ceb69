#include "meta/remote/collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "io/fault.h"
#include "io/mutex.h"
#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/inventory.h"
#include "meta/remote/part.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/tag_history.h"
#include "meta/remote/tombstone.h"

namespace ckptfs::meta::remote {
namespace {

using Time = std::chrono::system_clock::time_point;

constexpr size_t kMostWarnings = 100;
constexpr const char* kEndedKind = "ended";

// What of one look is known of the tags that have pushes.
struct Pushes {
  std::map<PushName, Time> dead;          // since when
  std::set<PushName> undecided;           // parts that are in no commit, and may be
  std::set<PushName> living;              // parts that are undecided, or whose commit stands
  std::map<std::string, uint64_t> next;   // by tag: the number that is not decided
  std::map<PushName, PackRanges> needed;  // by the living
};

// What a look may delete.
struct Deletions {
  std::vector<std::string> keys;
  uint64_t bytes = 0;
};

class Collector {
 public:
  Collector(io::ObjectStore& store, const CollectorSettings& settings, std::optional<Look>& memory)
      : store_(store), settings_(settings), memory_(memory) {}

  Result<CollectorReport> run();

 private:
  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  Result<> tell_time();
  Result<> read_looks();
  Result<> check_seen() const;
  Result<> apply_rules();
  Result<> sort_pushes();
  Result<> sort_tag(const std::string& tag, const DecisionsOfTag& decided, std::vector<PushName> pushes);
  void sort_push(const PushName& push, const PushObjects& objects, const TagHistory& history,
                 const DecisionsOfTag& decided);
  Result<> list_parts_again();
  Result<> read_living();
  void warn_of_missing(const PushName& part, const UsedPush& used, Time since);
  Result<> end_stale();
  Result<> end_part(const PushName& push);
  Result<> find_garbage();
  void judge_push(const PushName& push, const PushObjects& objects, Deletions& deletions);
  void judge_votes(Deletions& deletions);
  Result<> remove(const Deletions& deletions);
  Result<> write_look();
  Result<> sweep();
  void warn(std::string words);
  bool is_past(Time since, std::chrono::seconds age) const { return since + age <= report_.now; }

  io::ObjectStore& store_;
  const CollectorSettings& settings_;
  std::optional<Look>& memory_;
  CollectorReport report_;
  Inventory inventory_;
  Look last_;     // n is 0: there is none that counts
  Look earlier_;  // the newest that is at least a day old; likewise
  Look ours_;
  Pushes pushes_;
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

Result<> Collector::read_looks() {
  if (inventory_.looks.empty()) return success();
  TRY_ASSIGN(last_, fetch_look(store_, inventory_.looks.rbegin()->first, limits()));
  if (settings_.restored) {
    const std::string restored = std::move(last_.restored);
    last_ = {};
    last_.restored = restored;
    return success();
  }
  const auto is_old = [this](const auto& look) { return is_past(look.second, settings_.grace); };
  const auto old = std::find_if(inventory_.looks.rbegin(), inventory_.looks.rend(), is_old);
  if (old == inventory_.looks.rend()) return success();
  TRY_ASSIGN(Look look, fetch_look(store_, old->first, limits()));
  if (look.restored == last_.restored) earlier_ = std::move(look);
  return success();
}

// A list may be short, and a store may be restored from a copy. Both show as something that is no longer there.
Result<> Collector::check_seen() const {
  if (last_.n > 0) TRY(check_decisions(last_, inventory_, store_.url()));
  const bool remembers = memory_ && !settings_.restored && !io::fault_value("memory_forgotten");
  if (remembers) TRY(check_memory(*memory_, last_, inventory_, store_.url()));
  return success();
}

Result<> Collector::apply_rules() {
  TRY_ASSIGN(const NumberedRules rules, read_rules(store_, limits()));
  const auto decisions = decide_by_rules(rules.rules, inventory_.steps, report_.now);
  for (size_t at = 0; at < decisions.size(); ++at) {
    const CommittedStep& step = inventory_.steps[at];
    if (step.gone || decisions[at].stays) continue;
    const std::string why = "no rule keeps it: " + decisions[at].why;
    if (!settings_.dry_run) TRY(remove_step(store_, step, settings_.host, why, limits()));
    report_.removed.push_back({step, why});
  }
  return success();
}

// Tags of which nothing but decisions is left are not read: they have nothing to collect.
Result<> Collector::sort_pushes() {
  for (auto at = inventory_.pushes.begin(); at != inventory_.pushes.end();) {
    const std::string tag = at->first.tag;
    std::vector<PushName> pushes;
    for (; at != inventory_.pushes.end() && at->first.tag == tag; ++at) pushes.push_back(at->first);
    const auto decided = inventory_.decisions.find(tag);
    TRY(sort_tag(tag, decided == inventory_.decisions.end() ? DecisionsOfTag() : decided->second, std::move(pushes)));
  }
  for (const CommittedStep& step : inventory_.steps) {
    if (step.gone || pushes_.next.contains(step.decision.tag)) continue;
    return Error(EIO, fmt::format("{}: {} stands, and none of its parts is listed", store_.url(),
                                  io::printable(step_key(step.decision))));
  }
  return success();
}

Result<> Collector::sort_tag(const std::string& tag, const DecisionsOfTag& decided, std::vector<PushName> pushes) {
  TagDecisions listed;
  for (const auto& [n, one] : decided.decided) {
    listed.undecided = n + 1;
    if (one.commit) listed.commits.push_back({{tag, n}, 0, one.changed, decided.gone.contains(n)});
  }
  TagHistory history;
  TRY(history.read(store_, tag, listed, limits()));
  pushes_.next[tag] = listed.undecided;
  for (const PushName& push : pushes) sort_push(push, inventory_.pushes.at(push), history, decided);
  for (const auto& [n, parts] : history.commits()) {
    if (decided.gone.contains(n)) continue;
    for (const PartName& part : parts) {
      if (pushes_.living.contains(part.push)) continue;
      return Error(EIO, fmt::format("{}: {} stands, and its part {} is not listed. If that lasts, the step is damaged: "
                                    "ckptfs remote rm removes it",
                                    store_.url(), io::printable(step_key({tag, n})), io::printable(part.push.text())));
    }
  }
  // A part that an earlier look has seen cannot vanish before it is decided.
  for (auto seen = last_.undecided.lower_bound(PushName{tag, 0, ""}); seen != last_.undecided.end() && seen->tag == tag;
       ++seen) {
    if (pushes_.living.contains(*seen) || history.is_ended(*seen) || history.commit_of(*seen)) continue;
    return Error(EIO, fmt::format("{}/{} was there at the last look, and is not listed: the list is not whole",
                                  store_.url(), io::printable(part_key(*seen))));
  }
  return success();
}

void Collector::sort_push(const PushName& push, const PushObjects& objects, const TagHistory& history,
                          const DecisionsOfTag& decided) {
  if (objects.is_ended) {
    pushes_.dead[push] = objects.changed;
  } else if (const auto commit = history.commit_of(push)) {
    const auto gone = decided.gone.find(*commit);
    if (gone != decided.gone.end()) {
      pushes_.dead[push] = gone->second;
    } else if (objects.has_part) {
      pushes_.living.insert(push);
    }
  } else if (const auto ended = history.ended_by(push)) {
    pushes_.dead[push] = decided.decided.at(*ended).changed;
  } else if (objects.has_part && !io::fault_value("undecided_collected")) {
    pushes_.undecided.insert(push);
    pushes_.living.insert(push);
  }
}

// Deletes rest on the list of parts, so it is asked for twice.
Result<> Collector::list_parts_again() {
  const auto note = [this](const io::ObjectInfo& object) -> Result<> {
    const auto push = parse_part_key(object.key);
    if (!push || object.size <= kMostEndedBytes) return success();
    PushObjects& objects = inventory_.pushes[*push];
    objects.has_part = true;
    objects.changed = object.changed;
    objects.part_bytes = object.size;
    return success();
  };
  return io::for_each_object(store_, kParts, note, limits());
}

// What is dead since less than a day is read as the living are: readers may still have it open. But if it is damaged,
// nobody has.
Result<> Collector::read_living() {
  std::vector<PushName> parts(pushes_.living.begin(), pushes_.living.end());
  const size_t living = parts.size();
  for (const auto& [push, since] : pushes_.dead) {
    const auto objects = inventory_.pushes.find(push);
    if (objects->second.has_part && !is_past(since, settings_.grace) && !io::fault_value("grace_forgotten")) {
      parts.push_back(push);
    }
  }
  io::Mutex mutex;
  return io::for_each_parallel(parts.size(), settings_.parallel, [&](size_t at) -> Result<> {
    const auto header = fetch_part_header(store_, parts[at], limits());
    if (!header && at >= living && is_damage(header.error())) return success();
    TRY(header);
    const io::MutexLock lock(mutex);
    for (const UsedPush& used : header.value().pushes) {
      if (used.push != parts[at] && io::fault_value("borrower_forgotten")) continue;
      PackRanges& needed = pushes_.needed[used.push];
      needed.insert(needed.end(), used.packs.begin(), used.packs.end());
      warn_of_missing(parts[at], used, inventory_.pushes.at(parts[at]).changed);
    }
    return success();
  });
}

// Of what stands, and is older than a day: of younger parts a list that is made meanwhile may not have the packs, and
// an undecided part that has lost a lender is never voted for.
void Collector::warn_of_missing(const PushName& part, const UsedPush& used, Time since) {
  const bool stands = pushes_.living.contains(part) && !pushes_.undecided.contains(part);
  if (!stands || !is_past(since, settings_.grace)) return;
  const auto objects = inventory_.pushes.find(used.push);
  for (const auto& [first, last] : used.packs) {
    for (uint64_t pack = first; pack <= last; ++pack) {
      const bool there = objects != inventory_.pushes.end() &&
                         std::ranges::binary_search(objects->second.packs, pack, {}, &ListedPack::pack);
      if (there) continue;
      warn(fmt::format("{}/{} is not there, and {} needs it: that step is damaged", store_.url(),
                       io::printable(pack_key(used.push, static_cast<uint32_t>(pack))), io::printable(part.text())));
    }
  }
}

Result<> Collector::end_stale() {
  for (const auto& [push, objects] : inventory_.pushes) {
    const bool unfinished = !objects.has_part && !pushes_.dead.contains(push) && !objects.packs.empty();
    if (unfinished && is_past(objects.newest_pack, settings_.unfinished)) {
      if (!settings_.dry_run) {
        const std::string text = fmt::format("{{\"ckptfs\":\"{}\",\"version\":{}}}\n", kEndedKind, kVersion);
        TRY(io::make_object(store_, part_key(push), text, limits()));  // else it has a part after all
      }
      report_.ended.push_back(push);
    }
    if (pushes_.undecided.contains(push) && is_past(objects.changed, settings_.unfinished)) TRY(end_part(push));
  }
  return success();
}

// By a void at the number that is undecided. If somebody else decides at that moment, the next look tries again: the
// part may be committed by now.
Result<> Collector::end_part(const PushName& push) {
  const auto next = pushes_.next.find(push.tag);
  if (next == pushes_.next.end()) return success();
  if (!settings_.dry_run) {
    const std::string key = step_key({push.tag, next->second});
    TRY_ASSIGN(const bool made, io::make_object(store_, key, text_of(Void{{}, push}), limits()));
    if (!made) pushes_.next.erase(next);
    if (!made) return success();
  }
  ++next->second;
  report_.ended.push_back(push);
  return success();
}

// A push of which a part is needed keeps those packs alone.
void Collector::judge_push(const PushName& push, const PushObjects& objects, Deletions& deletions) {
  const auto needed = pushes_.needed.find(push);
  const auto before = earlier_.garbage.find(push);
  const bool one_look = io::fault_value("one_look").has_value();
  PackRanges& garbage = ours_.garbage[push];
  for (const ListedPack& pack : objects.packs) {
    if (needed != pushes_.needed.end() && contains(needed->second, pack.pack)) continue;
    if (one_look || (before != earlier_.garbage.end() && contains(before->second, pack.pack))) {
      deletions.keys.push_back(pack_key(push, pack.pack));
      deletions.bytes += pack.bytes;
    } else {
      append(garbage, pack.pack);
      ++report_.garbage.objects;
      report_.garbage.bytes += pack.bytes;
    }
  }
  if (garbage.empty()) ours_.garbage.erase(push);
  if (!objects.has_part && !io::fault_value("mark_deleted")) return;  // what took its place stays
  if (earlier_.needless_parts.contains(push)) {
    deletions.keys.push_back(part_key(push));
    deletions.bytes += objects.part_bytes;
  } else {
    ours_.needless_parts.insert(push);
    ++report_.garbage.objects;
    report_.garbage.bytes += objects.part_bytes;
  }
}

// Votes at numbers that were decided over a day ago. They are small, and no look has to have seen them.
void Collector::judge_votes(Deletions& deletions) {
  for (const auto& [decision, slots] : inventory_.votes) {
    const auto tag = inventory_.decisions.find(decision.tag);
    if (tag == inventory_.decisions.end()) continue;
    const auto decided = tag->second.decided.find(decision.n);
    if (decided == tag->second.decided.end() || !is_past(decided->second.changed, settings_.grace)) continue;
    for (const uint32_t slot : slots) deletions.keys.push_back(vote_key(decision, slot));
  }
}

Result<> Collector::find_garbage() {
  for (auto& [push, needed] : pushes_.needed) unite(needed);
  Deletions deletions;
  for (const auto& [push, since] : pushes_.dead) {
    if (!is_past(since, settings_.grace) && !io::fault_value("grace_forgotten")) continue;
    judge_push(push, inventory_.pushes.at(push), deletions);
  }
  judge_votes(deletions);
  for (const auto& [key, made] : inventory_.probes) {
    if (is_past(made, settings_.grace)) deletions.keys.push_back(key);
  }
  return remove(deletions);
}

Result<> Collector::remove(const Deletions& deletions) {
  report_.deleted = {deletions.keys.size(), deletions.bytes};
  if (settings_.dry_run) return success();
  std::atomic<uint64_t> done = 0;
  return io::for_each_parallel(deletions.keys.size(), settings_.parallel, [&](size_t at) -> Result<> {
    TRY(store_.remove(deletions.keys[at], limits()));
    settings_.progress({"deleting", ++done});
    return success();
  });
}

// The looks before the one that the next look of tomorrow needs go.
Result<> Collector::write_look() {
  ours_.n = inventory_.looks.empty() ? 1 : inventory_.looks.rbegin()->first + 1;
  ours_.host = settings_.host;
  ours_.restored = last_.restored;
  if (settings_.restored) ours_.restored += (ours_.restored.empty() ? "" : " ") + settings_.id();
  ours_.undecided = pushes_.undecided;
  for (const auto& [tag, listed] : inventory_.decisions) {
    Look::Tag& seen = ours_.tags[tag];
    seen.decided = listed.decided.empty() ? 0 : listed.decided.rbegin()->first;
    for (const auto& [n, when] : listed.gone) seen.gone.insert(n);
  }
  if (settings_.dry_run) return success();
  TRY(io::make_object(store_, look_key(ours_.n), text_of(ours_), limits()));  // else somebody else looks, too
  memory_ = ours_;
  for (const auto& [n, made] : inventory_.looks) {
    if (n < earlier_.n) TRY(store_.remove(look_key(n), limits()));
  }
  return success();
}

// Only below what is ckptfs's.
Result<> Collector::sweep() {
  if (settings_.dry_run) return success();
  for (const char* const prefix : {kPacks, kParts, kVotes, kSteps, kGone, kRules, kLooks, kProbe}) {
    TRY_ASSIGN(const uint64_t swept, store_.sweep(prefix, settings_.unfinished, limits()));
    report_.swept += swept;
  }
  return success();
}

Result<CollectorReport> Collector::run() {
  TRY(tell_time());
  const auto listed = [this](uint64_t objects) { settings_.progress({"looking", objects}); };
  TRY_ASSIGN(inventory_, take_inventory(store_, listed, limits()));
  report_.objects = inventory_.objects;
  report_.bytes = inventory_.bytes;
  TRY(read_looks());
  TRY(check_seen());
  TRY(list_parts_again());
  TRY(sort_pushes());
  TRY(apply_rules());
  TRY(end_stale());
  TRY(read_living());
  TRY(find_garbage());
  TRY(write_look());
  TRY(sweep());
  for (const std::string& key : inventory_.foreign) {
    warn(fmt::format("{}/{} is none of ckptfs's: it is left alone", store_.url(), io::printable(key)));
  }
  if (inventory_.foreign_count > inventory_.foreign.size()) {
    warn(fmt::format("{}: {} objects in all are none of ckptfs's", store_.url(), inventory_.foreign_count));
  }
  return std::move(report_);
}

}  // namespace

std::chrono::seconds a_day() {
  const auto shorter = io::fault_value("remote_day");
  return shorter ? std::chrono::seconds(std::stoll(*shorter)) : std::chrono::hours(24);
}

Result<CollectorReport> collect(io::ObjectStore& store, const CollectorSettings& settings,
                                std::optional<Look>& memory) {
  return Collector(store, settings, memory).run();
}

}  // namespace ckptfs::meta::remote

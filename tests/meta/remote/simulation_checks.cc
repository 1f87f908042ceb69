#include "tests/meta/remote/simulation_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

#include "meta/names.h"
#include "meta/remote/remote_rules.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/tombstone.h"
#include "tests/meta/remote/simulation_world.h"

namespace ckptfs::meta::remote::testing {

void Checks::note_state(const std::string& mount, const std::string& tag, uint64_t attempt, const Files& files) {
  auto& states = states_[{mount, tag}];
  if (!states.empty()) states.back().until = world_.now();
  const io::Digest content = content_of_files(files);
  states.push_back({world_.now(), UINT64_MAX, attempt, content});
  held_.emplace(content, files);
}

std::optional<uint64_t> Checks::gone_since(const DecisionName& decision) const {
  const auto found = commits_.find(decision);
  return found == commits_.end() ? std::nullopt : found->second.gone;
}

std::optional<CommittedStep> Checks::newest_step() const {
  const auto steps = steps_of(by_tag_, "simulated:");
  return steps ? newest(steps.value()) : std::nullopt;
}

bool Checks::has_higher(const std::string& tag) const {
  return std::ranges::any_of(commits_, [&](const auto& one) { return step_number(one.first.tag) > step_number(tag); });
}

void Checks::list(const std::string& key, const StoredObject& object) {
  const std::chrono::system_clock::time_point made{std::chrono::seconds(object.made)};
  remote::note_decision(by_tag_, {key, object.text.size(), made});
}

// What the objects say.

void Checks::note_part(const PushName& push, const StoredObject& object) {
  auto begin = parse_begin(object.text);
  if (!begin || !begin.value()) return world_.fail(part_key(push) + ": it is no part");
  KnownPart part{std::move(begin.value()->header), {}};
  const std::string_view text = object.text;
  const std::string_view digests = text.substr(text.size() - part.header.chunks * sizeof(io::Digest));
  size_t at = begin.value()->end, chunk = 0;
  for (uint64_t number = 0; number < part.header.entries; ++number) {
    const size_t end = text.find('\n', at);
    const auto entry = parse_entry(text.substr(at, end - at));
    if (!entry || entry.value().size > kChunkBytes) return world_.fail(part_key(push) + ": an entry is wrong");
    at = end + 1;
    if (entry.value().kind != Entry::Kind::file) continue;
    io::Digest digest = digest_of_text("");
    if (entry.value().size > 0) std::memcpy(digest.data(), digests.data() + chunk++ * sizeof(digest), sizeof(digest));
    part.files.emplace(part.header.key_of(entry.value()), digest);
  }
  parts_.insert_or_assign(push, std::move(part));
}

void Checks::note_decision(const DecisionName& decision, const StoredObject& object) {
  decided_.emplace(decision, object.made);
  list(step_key(decision), object);
  if (object.text.size() > kMostVoidBytes) return note_commit(decision, object);
  const auto nothing = parse_void(object.text, decision.tag, step_key(decision));
  if (!nothing) return world_.fail(nothing.error().message());
  if (nothing.value().ended) ended_.insert(*nothing.value().ended);
}

void Checks::note_commit(const DecisionName& decision, const StoredObject& object) {
  auto commit = parse_commit(object.text, step_key(decision));
  if (!commit) return world_.fail(commit.error().message());
  const auto of_tag = std::ranges::count_if(
      commits_, [&](const auto& one) { return one.first.tag == decision.tag && one.first.n < decision.n; });
  KnownCommit& known = commits_[decision];
  known.parts = std::move(commit.value().parts);
  known.made = object.made;
  known.ordinal = static_cast<uint64_t>(of_tag) + 1;
  for (const PartName& part : known.parts) {
    known.needs.push_back(part_key(part.push));
    const auto found = parts_.find(part.push);
    if (found == parts_.end()) return world_.fail(step_key(decision) + ": it names a part that never was there");
    for (const auto& [key, digest] : found->second.files) known.needs.push_back(key);
  }
  for (const std::string& key : known.needs) ++needed_[key];
}

void Checks::note_gone(const DecisionName& decision, const StoredObject& object) {
  const auto commit = commits_.find(decision);
  if (commit == commits_.end()) return world_.fail(gone_key(decision) + ": there is no such commit");
  list(gone_key(decision), object);
  commit->second.gone = object.made;
  for (const std::string& key : commit->second.needs) --needed_[key];
}

void Checks::note_rules(const StoredObject& object) {
  auto rules = parse_rules(object.text, rules_.size() + 1, kRules);
  if (!rules) return world_.fail(rules.error().message());
  rules_.push_back({object.made, std::move(rules.value().rules.pins)});
}

// Parts come before steps in the order of the keys, but tombstones do not come after them.
void Checks::after_restore() {
  by_tag_.clear();
  decided_.clear();
  commits_.clear();
  ended_.clear();
  needed_.clear();
  rules_.clear();
  std::map<DecisionName, const StoredObject*> decisions;
  std::map<uint64_t, const StoredObject*> rules;
  for (const auto& [key, object] : world_.objects()) {
    if (const auto decision = parse_step_key(key)) decisions.emplace(*decision, &object);
    if (const auto n = parse_rules_key(key)) rules.emplace(*n, &object);
  }
  for (const auto& [decision, object] : decisions) {
    note_decision(decision, *object);
    const StoredObject* const gone = world_.find(gone_key(decision));
    if (gone != nullptr) note_gone(decision, *gone);
  }
  for (const auto& [n, object] : rules) note_rules(*object);
}

// What must be true of a change.

void Checks::after_put(const Actor* actor, const std::string& key) {
  const StoredObject& object = *world_.find(key);
  if (const auto push = parse_part_key(key)) {
    if (object.text.size() <= kMostEndedBytes) {
      ++world_.result().ended;
    } else {
      note_part(*push, object);
    }
  } else if (const auto decision = parse_step_key(key)) {
    check_decision(*decision);
    note_decision(*decision, object);
    if (commits_.contains(*decision)) check_commit(*decision);
  } else if (const auto gone = parse_gone_key(key)) {
    ++world_.result().removed;
    check_gone(actor, *gone);
    note_gone(*gone, object);
  } else if (parse_rules_key(key)) {
    note_rules(object);
  }
}

void Checks::check_decision(const DecisionName& decision) {
  const std::string key = step_key(decision);
  const std::string& text = world_.find(key)->text;
  if (decision.n > 1 && !decided_.contains({decision.tag, decision.n - 1})) {
    world_.fail(key + ": the one before is undecided");
  }
  if (text.size() > kMostVoidBytes) {
    ++world_.result().commits;
    return;
  }
  ++world_.result().voids;
  const auto nothing = parse_void(text, decision.tag, key);
  if (!nothing || !nothing.value().ended) return;
  ++world_.result().ended;
  for (const auto& [other, commit] : commits_) {
    for (const PartName& part : commit.parts) {
      if (part.push != *nothing.value().ended) continue;
      world_.fail(fmt::format("{} ends {}, which {} names", key, part.push.text(), step_key(other)));
    }
  }
}

void Checks::check_commit(const DecisionName& decision) {
  const std::string key = step_key(decision);
  const KnownCommit& commit = commits_.at(decision);
  if (commit.parts.size() != world_.slots()) return world_.fail(key + ": it lacks slots");
  for (const PartName& name : commit.parts) {
    const StoredObject* const part = world_.find(part_key(name.push));
    if (part == nullptr) return world_.fail(fmt::format("{}: {} is not there", key, part_key(name.push)));
    if (part->text.size() != name.size || digest_of_text(part->text) != name.digest) {
      return world_.fail(fmt::format("{}: {} is something else", key, part_key(name.push)));
    }
    check_files(parts_.at(name.push), key);
    if (ended_.contains(name.push)) return world_.fail(fmt::format("{}: a void ended {}", key, name.push.text()));
    for (const auto& [other, its] : commits_) {
      if (other == decision || other.tag != decision.tag || its.parts[name.push.slot].push != name.push) continue;
      return world_.fail(fmt::format("{}: {} has {}, too", key, step_key(other), name.push.text()));
    }
  }
  check_moment(commit.parts, key);
}

void Checks::check_files(const KnownPart& part, const std::string& key) const {
  for (const auto& [file, digest] : part.files) {
    const StoredObject* const found = world_.find(file);
    if (found == nullptr) return world_.fail(fmt::format("{}: {} is not there", key, file));
    if (digest_of_text(found->text) != digest) {
      return world_.fail(fmt::format("{}: {} holds something else than was pushed", key, file));
    }
  }
}

void Checks::check_moment(const PartList& parts, const std::string& key) const {
  std::vector<std::vector<State>> held;  // by each part's mount
  std::set<uint64_t> moments, attempts;
  for (const PartName& part : parts) {
    const PartHeader& header = parts_.at(part.push).header;
    auto states = states_.at({header.mount, part.push.tag});
    std::erase_if(states, [&](const State& state) { return state.content != header.content || state.attempt == 0; });
    for (const State& state : states) {
      moments.insert(state.since);
      attempts.insert(state.attempt);
    }
    held.push_back(std::move(states));
  }
  const auto all_held = [&](const auto& fits) {
    return std::ranges::all_of(held, [&](const auto& states) { return std::ranges::any_of(states, fits); });
  };
  const bool one_moment = std::ranges::any_of(moments, [&](uint64_t moment) {
    return all_held([&](const State& state) { return state.since <= moment && moment < state.until; });
  });
  const bool one_attempt = std::ranges::any_of(
      attempts, [&](uint64_t attempt) { return all_held([&](const State& one) { return one.attempt == attempt; }); });
  if (!one_moment) return world_.fail(key + ": at no moment all mounts held it");
  if (!one_attempt) world_.fail(key + ": it mixes attempts");
}

void Checks::check_gone(const Actor* actor, const DecisionName& decision) const {
  const std::string key = gone_key(decision);
  const auto commit = commits_.find(decision);
  if (commit == commits_.end()) return;  // note_gone() says so
  const auto latest = newest_step();
  if (latest && latest->decision == decision) return world_.fail(key + ": it is the newest step");
  const auto tombstone = parse_tombstone(world_.find(key)->text, key);
  if (!tombstone) return world_.fail(tombstone.error().message());
  const bool by_rule = tombstone.value().why.starts_with("no rule keeps it");
  if (!by_rule || actor == nullptr || actor->met_short_list) return;
  check_pins(*actor, CommittedStep{decision, commit->second.ordinal, {}}.name());
}

// The collector reads the rules after it began: those of then, or later ones.
void Checks::check_pins(const Actor& actor, const std::string& step) const {
  bool pinned = false;
  for (const KnownRules& rules : rules_) {
    const bool is_pinned = rules.pins.contains(step);
    pinned = rules.made + kLatest <= actor.began ? is_pinned : pinned && is_pinned;
  }
  if (pinned) world_.fail(step + " is pinned, and a rule removes it");
}

void Checks::after_remove(const std::string& key) {
  ++world_.result().deleted;
  const auto needed = needed_.find(key);
  if (needed != needed_.end() && needed->second > 0) world_.fail(key + " is deleted, and a standing commit names it");
  if (parse_step_key(key) || parse_gone_key(key) || parse_rules_key(key)) world_.fail(key + " is deleted");
}

void Checks::check_file(const RemoteStep& step, const UnionEntry& file, const std::string& content) {
  const Files& files = held_.at(step.part(file.slot).header().content);
  const auto found = files.find(step.entry(file).path);
  if (found != files.end() && found->second == content) return;
  world_.fail(fmt::format("{}: {} is not what was held", step.step().name(), file.path));
}

// What must be true in the end.

void Checks::check_last_attempt(const Slot& slot, const std::string& tag, const Files& files) {
  const KnownCommit* last = nullptr;
  for (const auto& [decision, commit] : commits_) {
    if (decision.tag == tag) last = &commit;
  }
  if (last == nullptr) return world_.fail(tag + " is not committed");
  if (parts_.at(last->parts.at(slot.slot).push).header.content == content_of_files(files)) return;
  world_.fail(fmt::format("{}: the last commit is not what {} holds", tag, slot.host));
}

void Checks::check_tidiness() {
  for (const auto& [key, object] : world_.objects()) {
    if (!may_stay(key, object)) return world_.fail(key + " lies there, and nobody needs it");
  }
  if (!world_.uploads().empty()) world_.fail("an upload was never ended");
}

bool Checks::may_stay(const std::string& key, const StoredObject& object) const {
  // The last run was made two days ago.
  const auto is_young = [this](uint64_t made) { return made + 4 * kDay > world_.now(); };
  if (parse_step_key(key) || parse_gone_key(key) || parse_rules_key(key)) return true;
  if (key == kCollectedKey || (parse_part_key(key) && object.text.size() <= kMostEndedBytes)) return true;
  if (const auto vote = parse_vote_key(key)) {
    const auto decided = decided_.find(vote->decision);
    return decided == decided_.end() || is_young(decided->second);
  }
  if (parse_push_key(key) || key.starts_with(kProbe)) return is_young(object.made);
  const auto needed = needed_.find(key);
  return needed != needed_.end() && needed->second > 0;
}

}  // namespace ckptfs::meta::remote::testing

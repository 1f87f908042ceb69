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
  const io::Digest content = content_of_files(files);
  states_[{mount, tag}].push_back({attempt, content});
  held_.emplace(content, files);
}

std::optional<uint64_t> Checks::gone_since(const DecisionName& decision) const {
  const auto found = commits_.find(decision);
  return found == commits_.end() ? std::nullopt : found->second.gone;
}

std::optional<CommittedStep> Checks::newest_step() const {
  const auto steps = decisions_.steps("simulated:");
  return steps ? newest(steps.value()) : std::nullopt;
}

void Checks::list(const std::string& key, const StoredObject& object) {
  const std::chrono::system_clock::time_point made{std::chrono::seconds(object.made)};
  decisions_.note({key, object.text.size(), made});
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
  list(step_key(decision), object);
  if (object.text.size() > kMostVoidBytes) note_commit(decision, object);
}

void Checks::note_commit(const DecisionName& decision, const StoredObject& object) {
  auto commit = parse_commit(object.text, step_key(decision));
  if (!commit) return world_.fail(commit.error().message());
  KnownCommit& known = commits_[decision];
  known.parts = std::move(commit.value().parts);
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
  decisions_ = {};
  commits_.clear();
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
      const auto needed = needed_.find(key);
      if (needed != needed_.end() && needed->second > 0) world_.fail(key + " is ended, and a standing commit names it");
    } else {
      note_part(*push, object);
    }
  } else if (const auto decision = parse_step_key(key)) {
    ++(object.text.size() > kMostVoidBytes ? world_.result().commits : world_.result().voids);
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
    if (parts_.at(name.push).header.decision != decision) {
      return world_.fail(fmt::format("{}: {} goes with another save", key, name.push.text()));
    }
  }
  check_attempt(commit.parts, key);
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

void Checks::check_attempt(const PartList& parts, const std::string& key) const {
  std::optional<std::set<uint64_t>> common;  // the attempts in which all mounts held this
  for (const PartName& part : parts) {
    const PartHeader& header = parts_.at(part.push).header;
    std::set<uint64_t> attempts;
    for (const State& state : states_.at({header.mount, part.push.tag})) {
      if (state.content == header.content && state.attempt != 0) attempts.insert(state.attempt);
    }
    if (common) std::erase_if(attempts, [&](uint64_t attempt) { return !common->contains(attempt); });
    common = std::move(attempts);
  }
  if (common->empty()) world_.fail(key + ": it mixes attempts");
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
  check_pins(*actor, decision.text());
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
  const auto steps = decisions_.steps("simulated:");
  const auto newest = steps ? newest_of_tag(steps.value(), tag) : std::nullopt;
  if (!newest) return world_.fail(tag + " is not committed");
  const KnownCommit* const last = &commits_.at(newest->decision);
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
  if (parse_push_key(key) || key.starts_with(kProbe)) return is_young(object.made);
  const auto needed = needed_.find(key);
  return needed != needed_.end() && needed->second > 0;
}

}  // namespace ckptfs::meta::remote::testing

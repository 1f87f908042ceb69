#include "meta/remote/election.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "io/fault.h"
#include "io/printable.h"
#include "meta/remote/part.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/union.h"

namespace ckptfs::meta::remote {
namespace {

using State = TagStatus::State;

constexpr int kMostRounds = 8;    // of one call. A round ends with an object that is made, by us or somebody else
constexpr int kMostUnlisted = 8;  // so often a list may come late. Then the part is gone: the store was rolled back
constexpr const char* kChangedElsewhere = "another slot has changed the step since its commit";
constexpr size_t kMostSmallText = 4096;

TagStatus waits(std::string reason, std::vector<uint32_t> missing = {}) {
  return {State::waits, std::move(missing), std::move(reason), {}, {}};
}
TagStatus status_of(State state, std::string reason) { return {state, {}, std::move(reason), {}, {}}; }

std::string text_of_slots(const std::vector<uint32_t>& slots) {
  return fmt::format("{} {}", slots.size() == 1 ? "slot" : "slots", fmt::join(slots, ", "));
}

std::vector<PushName> names_in(const PartList& parts) {
  std::vector<PushName> names;
  for (const PartName& part : parts) names.push_back(part.push);
  return names;
}

// The call has ended with a status, or looks again.
using Round = Result<std::optional<TagStatus>>;
Round ends(TagStatus status) { return std::optional(std::move(status)); }
Round looks_again() { return std::optional<TagStatus>(); }

// One call of advance().
class Election {
 public:
  Election(io::ObjectStore& store, const Slot& slot, const StepImage& image, const PushedPart& own,
           ElectionMemory& memory, const PushSettings& settings)
      : store_(store), slot_(slot), image_(image), own_(own), memory_(memory), settings_(settings) {}

  Result<TagStatus> run() {
    for (int round = 0; round < kMostRounds; ++round) {
      TRY_ASSIGN(auto status, look());
      if (status) return std::move(*status);
    }
    return waits("other slots decide at this moment");
  }

 private:
  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  DecisionName decision() const { return {image_.tag(), n_}; }

  Round look();
  Round find_own(TagParts& listed);
  Result<> list_votes();
  Round choose_parts(const TagParts& listed, std::vector<PushName>& chosen);
  Round find_commit(const std::vector<PushName>& chosen);
  Result<> read_parts(const std::vector<PushName>& chosen);
  Result<bool> is_save_of_last(const std::vector<const Part*>& parts);
  Result<bool> is_late();
  Round decide();
  Round count_votes();
  Result<std::map<uint32_t, Vote>> read_votes();
  Round vote();
  Result<std::optional<TagStatus>> speaks_against();
  Round commit();
  Round make_void();

  io::ObjectStore& store_;
  const Slot& slot_;
  const StepImage& image_;
  const PushedPart& own_;
  ElectionMemory& memory_;
  const PushSettings& settings_;

  // Of this round.
  TagDecisions decisions_;
  uint64_t n_ = 1;
  std::vector<uint32_t> voters_;
};

Round Election::look() {
  TRY_ASSIGN(decisions_, list_decisions(store_, image_.tag(), limits()));
  n_ = decisions_.undecided;
  if (n_ <= memory_.decided) return ends(waits(fmt::format("the list of {} lags behind", store_.url())));
  memory_.decided = n_ - 1;
  TRY(memory_.history.read(store_, image_.tag(), decisions_, limits()));
  // Also while others are waited for: its part is no longer what they could vote for.
  if (memory_.history.is_ended(own_.name.push) && !io::fault_value("void_unread")) {
    return ends(status_of(State::ended, "its part was undecided for days and was removed there"));
  }
  TRY(list_votes());  // before the parts: see the head of election.h
  TRY_ASSIGN(TagParts listed, list_parts(store_, image_.tag(), limits()));
  std::erase_if(listed.parts, [this](const ListedPart& part) {
    return memory_.history.is_ended(part.push) && part.push != own_.name.push;
  });
  TRY_ASSIGN(auto unlisted, find_own(listed));
  if (unlisted) return ends(std::move(*unlisted));
  std::vector<PushName> names;
  for (const ListedPart& part : listed.parts) names.push_back(part.push);
  const bool is_known = memory_.listed == names;
  std::vector<PushName> chosen = names_in(memory_.parts);
  if (!is_known) {
    memory_.listed.clear();
    TRY_ASSIGN(auto status, choose_parts(listed, chosen));
    if (status) return ends(std::move(*status));
  }
  TRY_ASSIGN(auto committed, find_commit(chosen));
  if (committed) return ends(std::move(*committed));
  if (!is_known) TRY(read_parts(chosen));
  memory_.listed = std::move(names);
  if (memory_.unvotable) return ends(*memory_.unvotable);
  return decide();
}

// The part of this slot must be among those that are listed. If its commit is gone, the collector may have taken it,
// and those of the other slots.
Round Election::find_own(TagParts& listed) {
  const PushName& own = own_.name.push;
  if (std::ranges::binary_search(listed.parts, own, {}, &ListedPart::push)) {
    memory_.unlisted = 0;
    return looks_again();
  }
  if (const auto committed = memory_.history.commit_of(own)) {
    const CommittedStep& last = decisions_.commits.back();
    TRY_ASSIGN(const bool spent, is_spent(store_, own, listed, memory_.history, limits()));
    if (spent || last.decision.n != *committed) return ends(status_of(State::push_again, kChangedElsewhere));
    if (last.gone) return ends({State::committed, {}, "", last, {}});
    listed.parts.insert(std::ranges::lower_bound(listed.parts, own, {}, &ListedPart::push), {own, own_.name.size});
    return looks_again();
  }
  const std::string reason = "its part is missing in the list of " + store_.url();
  if (++memory_.unlisted < kMostUnlisted) return ends(waits(reason));
  return ends(status_of(State::push_again, reason));
}

Result<> Election::list_votes() {
  voters_.clear();
  if (slot_.slots == 1) return success();
  const std::string key = vote_key(decision(), slot_.slot);
  const auto visit = [&](const io::ObjectInfo& object) -> Result<> {
    const auto vote = parse_vote_key(object.key);
    if (vote && vote->decision == decision() && vote->slot < slot_.slots) voters_.push_back(vote->slot);
    return success();
  };
  TRY(io::for_each_object(store_, key.substr(0, key.rfind('/') + 1), visit, limits()));
  std::ranges::sort(voters_);
  return success();
}

// A slot's only part needs no look at its header.
Round Election::choose_parts(const TagParts& listed, std::vector<PushName>& chosen) {
  chosen.clear();
  std::vector<uint32_t> missing;
  for (uint32_t slot = 0; slot < slot_.slots; ++slot) {
    const auto parts = listed.of_slot(slot);
    if (parts.empty()) missing.push_back(slot);
    if (parts.size() == 1) chosen.push_back(parts.front().push);
    if (parts.size() < 2) continue;
    const auto best = newest_part(store_, parts, limits());
    if (!best && best.error().errno_value() == EEXIST) return ends(status_of(State::refused, best.error().message()));
    if (!best) return best.error();
    const SlotPart& part = *best.value();
    chosen.push_back(part.listed.push);
    if (slot != slot_.slot || part.listed.push == own_.name.push) continue;
    if (part.header.mount == slot_.mount) return ends(status_of(State::push_again, "this mount has pushed it anew"));
    return ends(status_of(State::refused,
                          fmt::format("slot {} of {} is pushed by a mount on {}, too: give each its own slot, or "
                                      "remove the remote from one of them",
                                      slot, image_.tag(), io::printable(part.header.host))));
  }
  if (missing.empty()) return looks_again();
  return ends(waits(fmt::format("{} did not push it yet", text_of_slots(missing)), missing));
}

Round Election::find_commit(const std::vector<PushName>& chosen) {
  const auto committed = memory_.history.commit_of(own_.name.push);
  if (!committed) return looks_again();
  const CommittedStep& last = decisions_.commits.back();
  if (last.decision.n == *committed && names_in(memory_.history.commits().at(*committed)) == chosen) {
    TRY_ASSIGN(Commit commit, fetch_commit(store_, last.decision, limits()));  // for its notes
    return ends({State::committed, {}, "", last, std::move(commit.notes)});
  }
  if (io::fault_value("part_spent")) return looks_again();
  return ends(status_of(State::push_again, kChangedElsewhere));
}

// Can the parts be one step? Returns what speaks against it: two slots name different attempts. One that names none may
// go with any.
std::optional<TagStatus> find_mixed_attempts(const std::vector<const Part*>& parts) {
  const PartHeader* first = nullptr;
  for (const Part* part : parts) {
    const PartHeader& header = part->header();
    if (header.attempt.empty()) continue;
    if (first == nullptr) first = &header;
    if (header.attempt == first->attempt) continue;
    return status_of(State::refused,
                     fmt::format("slots {} and {} hold different attempts: {} and {}", first->push.slot,
                                 header.push.slot, io::printable(first->attempt), io::printable(header.attempt)));
  }
  return std::nullopt;
}

Result<std::optional<TagStatus>> judge_parts(const std::vector<const Part*>& parts, std::vector<std::string>& notes) {
  if (auto mixed = find_mixed_attempts(parts)) return mixed;
  auto whole = unite(parts);
  if (!whole && whole.error().errno_value() == EEXIST) {
    return std::optional(status_of(State::refused, whole.error().message()));
  }
  if (!whole) return whole.error();
  const auto judged = judge_union(parts, whole.value());
  if (judged.completeness == formats::Completeness::incomplete) {
    return std::optional(status_of(State::incomplete, judged.reason));
  }
  notes = std::move(whole.value().notes);
  return std::optional<TagStatus>();
}

Result<> Election::read_parts(const std::vector<PushName>& chosen) {
  std::vector<Part> parts;
  for (const PushName& push : chosen) {
    const bool is_own = push == own_.name.push;
    const auto wanted = is_own ? std::optional(own_.name.digest) : std::nullopt;
    TRY_ASSIGN(Part part, fetch_part(store_, push, wanted, settings_.folder, limits()));
    parts.push_back(std::move(part));
  }
  memory_.parts.clear();
  std::vector<const Part*> all;
  for (const Part& part : parts) {
    all.push_back(&part);
    memory_.parts.push_back(part.name());
  }
  memory_.notes.clear();
  TRY_ASSIGN(memory_.unvotable, judge_parts(all, memory_.notes));
  TRY_ASSIGN(memory_.same_save, is_save_of_last(all));
  return success();
}

// Do the parts hold what the last commit of the tag does? Of what was removed, or is damaged, nobody can tell.
Result<bool> Election::is_save_of_last(const std::vector<const Part*>& parts) {
  if (decisions_.commits.empty() || decisions_.commits.back().gone) return false;
  const PartList& last = memory_.history.commits().at(decisions_.commits.back().decision.n);
  std::vector<std::optional<Part>> fetched(last.size());  // those that are not among `parts`
  std::vector<const Part*> before;
  for (size_t slot = 0; slot < last.size(); ++slot) {
    if (slot < parts.size() && parts[slot]->header().push == last[slot].push) {
      before.push_back(parts[slot]);
      continue;
    }
    auto part = fetch_part(store_, last[slot].push, last[slot].digest, settings_.folder, limits());
    if (!part && is_damage(part.error())) return false;
    if (!part) return part.error();
    before.push_back(&fetched[slot].emplace(std::move(part).value()));
  }
  return is_same_save(before, parts);
}

Round Election::decide() {
  if (slot_.slots > 1) return count_votes();
  TRY_ASSIGN(auto against, speaks_against());
  if (against) return ends(std::move(*against));
  return commit();
}

Result<std::map<uint32_t, Vote>> Election::read_votes() {
  std::map<uint32_t, Vote> votes;
  for (const uint32_t voter : voters_) {
    const std::string key = vote_key(decision(), voter);
    TRY_ASSIGN(const std::string text, io::get_text(store_, key, kMostSmallText, limits()));
    TRY_ASSIGN(votes[voter], parse_vote(text, store_.url() + "/" + key));
  }
  return votes;
}

Round Election::count_votes() {
  const io::Digest list = digest_of(memory_.parts);
  TRY_ASSIGN(const auto votes, read_votes());
  const auto differs = [&](const auto& vote) { return vote.second.parts != list; };
  const bool unequal = std::ranges::any_of(votes, differs) && !io::fault_value("commit_unequal");
  if (unequal) return make_void();
  if (votes.size() == slot_.slots) return commit();
  if (!votes.contains(slot_.slot)) return vote();
  std::vector<uint32_t> missing;
  for (uint32_t slot = 0; slot < slot_.slots; ++slot) {
    if (!votes.contains(slot)) missing.push_back(slot);
  }
  return ends(waits(fmt::format("{} did not vote for it yet", text_of_slots(missing)), missing));
}

// What speaks against the word of this slot for its part. The image comes last: see the head of election.h.
Result<std::optional<TagStatus>> Election::speaks_against() {
  if (io::fault_value("vote_unchecked")) return std::optional<TagStatus>();
  TRY_ASSIGN(const bool may_vote, image_.may_be_voted_for());
  if (may_vote) return std::optional<TagStatus>();
  return std::optional(waits("its files are in use, or have changed"));
}

Round Election::vote() {
  TRY_ASSIGN(auto against, speaks_against());
  if (against) return ends(std::move(*against));
  if (own_.found && !memory_.may_vote && !io::fault_value("found_unvoided")) return make_void();
  TRY(io::make_object(store_, vote_key(decision(), slot_.slot), text_of(Vote{digest_of(memory_.parts)}), limits()));
  return looks_again();
}

Round Election::make_void() {
  const auto mode = io::fault_value("void_replaces") ? io::PutMode::replace : io::PutMode::make;
  const std::string text = text_of(Void{digest_of(memory_.parts), std::nullopt});
  TRY_ASSIGN(const bool made, io::make_object(store_, step_key(decision()), text, limits(), mode));
  memory_.may_vote = memory_.may_vote || made;
  memory_.decided = n_;
  return looks_again();
}

// CommittedStep::late
Result<bool> Election::is_late() {
  if (settings_.late || !memory_.same_save) return settings_.late;
  TRY_ASSIGN(const auto steps, list_steps(store_, limits()));
  return !steps.empty() && steps.back().decision.tag != image_.tag();
}

Round Election::commit() {
  TRY_ASSIGN(const bool late, is_late());
  const Commit commit{decision(), memory_.parts, memory_.notes, slot_.host, late};
  TRY(io::make_object(store_, step_key(decision()), text_of(commit), limits()));
  memory_.decided = n_;
  return looks_again();
}

}  // namespace

Result<TagStatus> advance(io::ObjectStore& store, const Slot& slot, const StepImage& image, const PushedPart& own,
                          ElectionMemory& memory, const PushSettings& settings) {
  return Election(store, slot, image, own, memory, settings).run();
}

}  // namespace ckptfs::meta::remote

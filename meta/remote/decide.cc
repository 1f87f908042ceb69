#include "meta/remote/decide.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <utility>

#include "io/fault.h"
#include "meta/remote/part.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/union.h"

namespace ckptfs::meta::remote {
namespace {

using State = TagStatus::State;

constexpr int kMostUnlisted = 8;  // so often a list may come late. Then the part is gone: the store was rolled back

TagStatus status_of(State state, std::string reason, std::vector<uint32_t> missing = {}) {
  return {state, std::move(missing), std::move(reason), {}, {}};
}

std::string text_of_slots(const std::vector<uint32_t>& slots) {
  return fmt::format("{} {}", slots.size() == 1 ? "slot" : "slots", fmt::join(slots, ", "));
}

// Can the parts be one step? Returns what speaks against it.
Result<std::optional<TagStatus>> judge_parts(const std::vector<const Part*>& parts, std::vector<std::string>& notes) {
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

// One call of decide().
class Decider {
 public:
  Decider(io::ObjectStore& store, const Slot& slot, const PushedPart& own, KnownParts& known, DecisionMemory& memory,
          const PushSettings& settings)
      : store_(store), slot_(slot), own_(own), known_(known), memory_(memory), settings_(settings) {}

  Result<TagStatus> run();

 private:
  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  Result<std::optional<TagStatus>> find_decision();
  Result<std::optional<TagStatus>> find_own(const TagParts& listed);
  Result<std::map<uint32_t, PushName>> newest_parts(const TagParts& listed);

  io::ObjectStore& store_;
  const Slot& slot_;
  const PushedPart& own_;
  KnownParts& known_;
  DecisionMemory& memory_;
  const PushSettings& settings_;
  std::string damaged_;  // a part that counts for nothing
};

// None: nothing is decided.
Result<std::optional<TagStatus>> Decider::find_decision() {
  TRY_ASSIGN(const Decided decided, known_.decided(store_, own_.decision, limits()));
  if (decided == Decided::nothing) return std::optional<TagStatus>();
  if (decided == Decided::voided) {
    return std::optional(status_of(State::ended, "its part was undecided for days and was removed there"));
  }
  TRY_ASSIGN(Commit commit, fetch_commit(store_, own_.decision, limits()));
  if (slot_.slot >= commit.parts.size() || commit.parts[slot_.slot].push != own_.name.push) {
    return std::optional(status_of(State::push_again, "it was committed without what has changed here since"));
  }
  TRY_ASSIGN(const auto steps, list_steps(store_, limits()));
  const auto step = std::ranges::find(steps, own_.decision, &CommittedStep::decision);
  if (step == steps.end()) return Error(EIO, "the list of " + store_.url() + " lags behind");
  return std::optional(TagStatus{State::committed, {}, "", *step, std::move(commit.notes)});
}

// The part of this slot must be there, and slot 0 must not have begun anew.
Result<std::optional<TagStatus>> Decider::find_own(const TagParts& listed) {
  if (!listed.has(own_.name.push)) {
    const std::string reason = "its part is missing in the list of " + store_.url();
    const bool waits = ++memory_.unlisted < kMostUnlisted;
    return std::optional(status_of(waits ? State::waits : State::push_again, reason));
  }
  memory_.unlisted = 0;
  if (slot_.slot == 0) return std::optional<TagStatus>();
  TRY_ASSIGN(const PartHeader* const header, known_.header(store_, own_.name.push, limits()));
  if (header == nullptr) return std::optional(status_of(State::push_again, "its part is damaged there"));
  TRY_ASSIGN(const Lead lead, find_lead(store_, listed, header->save, known_, limits()));
  if (!lead.decision || *lead.decision == own_.decision) return std::optional<TagStatus>();
  return std::optional(status_of(State::push_again, "slot 0 has pushed the save again"));
}

// Of each slot the newest one that goes with this decision.
Result<std::map<uint32_t, PushName>> Decider::newest_parts(const TagParts& listed) {
  std::map<uint32_t, PushName> found;
  for (const ListedPart& part : listed.parts) {
    if (part.push.slot >= slot_.slots || found.contains(part.push.slot)) continue;
    TRY_ASSIGN(const PartHeader* const header, known_.header(store_, part.push, limits()));
    if (header == nullptr) damaged_ = part_key(part.push);
    if (header != nullptr && header->decision == own_.decision) found.emplace(part.push.slot, part.push);
  }
  return found;
}

Result<TagStatus> Decider::run() {
  TRY_ASSIGN(auto decided, find_decision());
  if (decided) return std::move(*decided);
  TRY_ASSIGN(const TagParts listed, list_parts(store_, own_.decision.tag, limits()));
  TRY_ASSIGN(auto without, find_own(listed));
  if (without) return std::move(*without);
  TRY_ASSIGN(const auto newest, newest_parts(listed));
  std::vector<PushName> chosen;
  std::vector<uint32_t> missing;
  for (uint32_t slot = 0; slot < slot_.slots; ++slot) {
    const auto found = newest.find(slot);
    if (found == newest.end()) missing.push_back(slot);
    if (found != newest.end()) chosen.push_back(found->second);
  }
  if (!missing.empty()) {
    const std::string damage = damaged_.empty() ? "" : fmt::format("; {} is damaged there", damaged_);
    return status_of(State::waits, fmt::format("{} did not push this save yet{}", text_of_slots(missing), damage),
                     missing);
  }
  Judgement& judged = memory_.judged;
  if (!std::ranges::equal(judged.parts, chosen, {}, &PartName::push)) {
    TRY_SET(judged, judge(store_, chosen, settings_.folder, limits()));
  }
  if (judged.unwelcome) return *judged.unwelcome;
  const PartName& there = judged.parts[slot_.slot];
  if (there.push == own_.name.push && there != own_.name) {
    return Error(EBADMSG, store_.url() + "/" + part_key(there.push) + ": it is not what was put there");
  }
  TRY(commit(store_, own_.decision, judged, slot_.host, limits()));
  TRY_ASSIGN(decided, find_decision());
  return decided ? std::move(*decided) : status_of(State::waits, "the list of " + store_.url() + " lags behind");
}

}  // namespace

Result<Judgement> judge(io::ObjectStore& store, const std::vector<PushName>& parts, const std::string& folder,
                        const io::RequestLimits& limits) {
  const auto began = std::chrono::steady_clock::now();
  std::vector<Part> read;
  for (const PushName& push : parts) {
    TRY_ASSIGN(Part part, fetch_part(store, push, {}, folder, limits.renewed(began)));
    read.push_back(std::move(part));
  }
  Judgement judged;
  std::vector<const Part*> all;
  for (const Part& part : read) {
    all.push_back(&part);
    judged.parts.push_back(part.name());
  }
  TRY_ASSIGN(judged.unwelcome, judge_parts(all, judged.notes));
  return judged;
}

Result<> commit(io::ObjectStore& store, const DecisionName& decision, const Judgement& judged, const std::string& host,
                const io::RequestLimits& limits) {
  const Commit commit{decision, judged.parts, judged.notes, host};
  const auto mode = io::fault_value("commit_replaces") ? io::PutMode::replace : io::PutMode::make;
  TRY(io::make_object(store, step_key(decision), text_of(commit), limits, mode));
  return success();
}

Result<TagStatus> decide(io::ObjectStore& store, const Slot& slot, const PushedPart& own, KnownParts& known,
                         DecisionMemory& memory, const PushSettings& settings) {
  return Decider(store, slot, own, known, memory, settings).run();
}

}  // namespace ckptfs::meta::remote

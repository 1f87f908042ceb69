// Which steps are not pushed: what cannot be, what the remote has already, what was removed or ended there, and what
// its rules would not keep.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "fs/remote/fetched_step.h"
#include "fs/remote/series_pusher.h"
#include "io/log.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/tombstone.h"
#include "meta/steps/ledger.h"
#include "meta/tree/process.h"

namespace ckptfs::fs {
namespace {

constexpr std::chrono::hours kRulesAgain{1};  // so often a step that they would not keep is judged again
constexpr const char* kNotKnownWhole =
    ": it is not known to be whole; `setfattr -n user.ckptfs.whole -v 1 STEP` says that it is";

}  // namespace

// Can nobody tell that the step is whole, so that it is not to be the newest one there? Its files alone might not tell.
// Where no step is known to be whole, its layout is one that the mount does not know. Of several slots each sees a
// part.
bool SeriesPusher::is_in_doubt(const StepStatus& status, bool beside_whole) {
  if (status.facts.is_whole()) return false;
  const auto declared = meta::declared_steps(env_.store.tree(), series_);
  if (!declared || !declared.value().complete_when.empty()) return true;
  const bool is_unknown = status.facts.completeness == meta::formats::Completeness::unknown;
  if (!is_unknown || status.damaged || status.failed) return false;
  const auto& pushed = steps_[status.inode].pushed;
  if (pushed && pushed->fingerprint == status.fingerprint) return false;
  const auto fetched = fetched_step(env_.store, status.inode);
  if (fetched && fetched.value()) return false;  // it is there; push() finds whether it is as it came
  const io::MutexLock lock(mutex_);
  if (asked_.contains(status.inode)) return false;
  return status.facts.written_again || (beside_whole && settings_.slots == 1);
}

// Can the step not even be looked at? Then its state says why, and it is looked at again in each round. What is
// written, or cannot be read in this moment, waits; what is damaged, or cannot be read, is refused.
bool SeriesPusher::note_blocked(const StepStatus& status, bool beside_whole) {
  const bool refused = status.damaged || (status.failed && !status.passing);
  const bool in_doubt = is_in_doubt(status, beside_whole);
  if (!refused && !in_doubt && !status.failed && status.fingerprint != io::Digest{}) return false;
  const auto before = states_.of(status.inode);
  const bool is_same = before && before->tag == status.facts.tag;
  const bool is_known = is_same && (before->fingerprint == status.fingerprint || status.fingerprint == io::Digest{});
  if (is_same && before->is_settled() && (is_known || !in_doubt)) return true;
  if (is_same && !refused && before->stage == PushState::Stage::waiting) return true;
  PushState state = state_of({status});
  std::string why;  // what a user has to know of
  if (refused) {
    state.stage = PushState::Stage::refused;
    state.error = why = status.reason + (status.damaged ? "; save the step again" : "");
    const io::MutexLock lock(mutex_);
    asked_.erase(status.inode);
  } else {
    const bool is_unknown = status.facts.completeness == meta::formats::Completeness::unknown;
    const bool can_tell_nothing = in_doubt && is_unknown && !status.failed;
    state.waits_for = status.reason + (can_tell_nothing ? kNotKnownWhole : "");
    if (can_tell_nothing) why = state.waits_for;
  }
  if (!why.empty() && (!is_same || (before->error != why && before->waits_for != why))) {
    log::warn("{}: it is not pushed: {}", env_.store.tree().path_of(status.inode), why);
  }
  states_.set(series_, status.inode, std::move(state));
  return true;
}

// Does nobody go on with a step that lacks files? With several slots another machine may.
Result<bool> SeriesPusher::is_left_alone(meta::InodeNumber step) const {
  if (settings_.slots > 1) return false;
  TRY_ASSIGN(const StepStatus status, env_.step_facts.inspect_step(step));
  if (status.facts.in_use || status.quiet < env_.quiet) return false;
  return meta::state_of_writers(status.ledger.writers, meta::process_place(), meta::has_ended) !=
         meta::WritersState::living;
}

// A thinned step is pushed only where nothing else of that name is there: what is there holds more.
Result<bool> SeriesPusher::is_better_there(const Candidate& candidate) {
  if (candidate.status.facts.completeness != meta::formats::Completeness::weights) return false;
  TRY_ASSIGN(const auto steps, meta::remote::list_steps(*remote_, limits()));
  const auto there = meta::remote::newest_of_tag(steps, candidate.status.facts.tag);
  if (!there) return false;
  steps_[candidate.status.inode].others_at_rest = parts_of_others(candidate.status.facts.tag);
  note_there(candidate, there->name());
  return true;
}

// Does it still hold what was fetched, and is that commit still there? If it is this slot's own, and slot 0 has pushed
// that save again, it is pushed again, too.
Result<bool> SeriesPusher::is_as_fetched(const Candidate& candidate, const LocalStep& image) {
  TRY_ASSIGN(const auto fetched, fetched_step(env_.store, candidate.status.inode));
  if (!fetched || fetched->remote != facts_->id || fetched->tag != image.tag()) return false;
  TRY_ASSIGN(const io::Digest saved, meta::remote::saved_of(image));
  if (saved != fetched->saved) return false;
  TRY_ASSIGN(const auto steps, meta::remote::list_steps(*remote_, limits()));
  const auto there = std::ranges::find(steps, fetched->decision, [](const auto& step) { return step.decision.text(); });
  if (there == steps.end() || there->gone) return false;
  if (fetched->slot == settings_.slot && settings_.slots > 1) {
    TRY_ASSIGN(const bool awaited, is_awaited(candidate.status.inode, image));
    if (awaited) return false;
    steps_[candidate.status.inode].others_at_rest = parts_of_others(fetched->tag);
  }
  note_there(candidate, there->name());
  return true;
}

// So that who watches the series is told, and told once.
Result<> SeriesPusher::note_pushed(meta::InodeNumber step, const std::string& name) {
  const auto note = [&name](meta::LedgerEntry& entry) { meta::note_pushed(entry, name); };
  const auto noted = meta::change_ledger(env_.store, step, note);
  return noted || noted.error().errno_value() == ENOENT ? Result<>(success()) : noted.error();
}

// A step that is not known to be whole was pushed by hand. So that the next daemon knows that it is there, it counts as
// fetched from now on.
Result<> SeriesPusher::note_pushed_by_hand(meta::InodeNumber step, const LocalStep& image,
                                           const meta::remote::CommittedStep& there) {
  TRY_ASSIGN(const StepStatus status, env_.step_facts.inspect_step(step));
  if (status.facts.is_whole()) return success();
  TRY_ASSIGN(const io::Digest saved, meta::remote::saved_of(image));
  const auto slot = settings_.slots > 1 ? std::optional(settings_.slot) : std::nullopt;
  return note_fetched(env_.store, step, {facts_->id, image.tag(), there.name(), there.decision.text(), slot, saved});
}

// Has slot 0 pushed the save, and is nothing decided about that?
Result<bool> SeriesPusher::is_awaited(meta::InodeNumber step, const LocalStep& image) {
  if (settings_.slot == 0) return false;
  meta::remote::KnownParts known;
  return meta::remote::is_awaited(*remote_, slot_, image, known, push_settings(step));
}

// Was it removed there, as it is here? If slot 0 has pushed that save again, it is pushed again, too.
Result<bool> SeriesPusher::is_removed_there(const Candidate& candidate, const LocalStep& image) {
  TRY_ASSIGN(const io::Digest saved, meta::remote::saved_of(image));
  TRY_ASSIGN(const auto tombstone,
             meta::remote::find_removed(*remote_, image.tag(), settings_.slot, saved, image.order(), limits()));
  if (!tombstone) return false;
  TRY_ASSIGN(const bool awaited, is_awaited(candidate.status.inode, image));
  if (awaited) return false;
  steps_[candidate.status.inode].others_at_rest = parts_of_others(image.tag());
  PushState state = state_of(candidate);
  state.stage = PushState::Stage::removed;
  state.waits_for =
      "it was removed there by " + tombstone->host + ": " + tombstone->why + "; `ckptfs push` pushes it again";
  log::info("{}: it is not pushed: {}", env_.store.tree().path_of(candidate.status.inode), state.waits_for);
  settle(candidate, std::move(state));
  return true;
}

// Would the remote's rules not keep it? They are asked again later.
Result<bool> SeriesPusher::is_not_kept(const Candidate& candidate) {
  TRY_ASSIGN(const std::string why, wanted_.why_not(*remote_, candidate.status.facts.tag, limits()));
  if (why.empty()) return false;
  const auto before = states_.of(candidate.status.inode);
  PushState state = state_of(candidate);
  state.stage = PushState::Stage::not_kept;
  state.waits_for = why;
  if (!before || before->stage != state.stage) {
    log::info("{}: it is not pushed: {}", env_.store.tree().path_of(candidate.status.inode), why);
  }
  settle(candidate, std::move(state));
  steps_[candidate.status.inode].not_before = Clock::now() + kRulesAgain;
  return true;
}

// It is not pushed, since the remote has it.
void SeriesPusher::note_there(const Candidate& candidate, const std::string& name) {
  PushState state = state_of(candidate);
  state.stage = PushState::Stage::committed;
  state.name = name;
  settle(candidate, std::move(state));
}

void SeriesPusher::settle(const Candidate& candidate, PushState state) {
  states_.set(series_, candidate.status.inode, std::move(state));
  steps_[candidate.status.inode].forget_failures();
}

}  // namespace ckptfs::fs

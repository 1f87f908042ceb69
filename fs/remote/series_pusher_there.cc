// Which steps are not pushed: what the remote has already, what was removed or ended there, and what its rules would
// not keep.
#include <cerrno>
#include <utility>

#include "fs/remote/fetched_step.h"
#include "fs/remote/series_pusher.h"
#include "io/log.h"
#include "meta/remote/slot_parts.h"
#include "meta/remote/tombstone.h"

namespace ckptfs::fs {
namespace {

constexpr std::chrono::hours kRulesAgain{1};  // so often a step that they would not keep is judged again

}  // namespace

// A thinned step is pushed only where nothing else of that name is there: what is there holds more.
Result<bool> SeriesPusher::is_better_there(const Candidate& candidate) {
  if (candidate.status.facts.completeness != meta::formats::Completeness::weights) return false;
  TRY_ASSIGN(const auto decisions, meta::remote::list_decisions(*remote_, candidate.status.facts.tag, limits()));
  if (decisions.commits.empty()) return false;
  others_at_rest_[candidate.status.inode] = parts_of_others(candidate.status.facts.tag);
  note_there(candidate, decisions.commits.back().name());
  return true;
}

// Does it still hold what was fetched, and is that commit still there? If it is this slot's own, and another slot has
// pushed the step again, it is pushed again, too.
Result<bool> SeriesPusher::is_as_fetched(const Candidate& candidate, const LocalStep& image) {
  TRY_ASSIGN(const auto fetched, fetched_step(env_.store, candidate.status.inode));
  if (!fetched || fetched->remote != facts_->id || fetched->tag != image.tag()) return false;
  TRY_ASSIGN(const io::Digest content, meta::remote::content_of(image));
  if (content != fetched->content) return false;
  const auto there = meta::remote::find_step(*remote_, fetched->name, limits());
  if (!there && there.error().errno_value() != ENOENT) return there.error();
  if (!there || there.value().gone) return false;
  if (fetched->slot == settings_.slot && settings_.slots > 1) {
    TRY_ASSIGN(const bool newer, meta::remote::has_newer_part(*remote_, fetched->tag, settings_.slot, limits()));
    if (newer) return false;
    others_at_rest_[candidate.status.inode] = parts_of_others(fetched->tag);
  }
  note_there(candidate, fetched->name);
  return true;
}

// Was it removed there, as it is here? If another slot has pushed the step again, it is pushed again, too.
Result<bool> SeriesPusher::is_removed_there(const Candidate& candidate, const LocalStep& image) {
  TRY_ASSIGN(const io::Digest content, meta::remote::content_of(image));
  TRY_ASSIGN(const auto tombstone,
             meta::remote::find_removed(*remote_, image.tag(), settings_.slot, content, limits()));
  if (!tombstone) return false;
  if (settings_.slots > 1) {
    TRY_ASSIGN(const bool newer, meta::remote::has_newer_part(*remote_, image.tag(), settings_.slot, limits()));
    if (newer) return false;
  }
  others_at_rest_[candidate.status.inode] = parts_of_others(image.tag());
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
  not_before_[candidate.status.inode] = Clock::now() + kRulesAgain;
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
  failures_in_a_row_.erase(candidate.status.inode);
  not_before_.erase(candidate.status.inode);
}

// Would its step wait for days again? If only a vote was missing, as of a slot whose files were in use, it is pushed
// again at once: otherwise two slots whose parts were ended would wait for each other.
bool SeriesPusher::rests_when_ended(const Pushed& pushed) const {
  const bool is_a_slot_missing = pushed.others.slots.size() + 1 < settings_.slots;
  return is_a_slot_missing || pushed.memory.unvotable;
}

}  // namespace ckptfs::fs

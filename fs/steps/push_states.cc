#include "fs/steps/push_states.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

namespace ckptfs::fs {

const char* name_of(PushState::Stage stage) {
  constexpr std::array kNames{"unpushed", "pushing", "waiting", "committed", "refused", "not kept", "removed"};
  return kNames.at(static_cast<size_t>(stage));
}

std::string PushState::text() const {
  std::string text = name_of(stage);
  if (stage == Stage::pushing && bytes != 0) text += fmt::format(" {}%", (sent + copied) * 100 / bytes);
  if (stage == Stage::waiting && !missing.empty()) {
    text += fmt::format(" for slot{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  }
  if (stage == Stage::committed) text += ' ' + name;
  return text;
}

void PushStates::add_series(meta::InodeNumber series, uint32_t slots) {
  const io::MutexLock lock(mutex_);
  series_[series] = slots;
}

void PushStates::remove_series(meta::InodeNumber series) {
  const io::MutexLock lock(mutex_);
  series_.erase(series);
  std::erase_if(steps_, [series](const auto& one) { return one.second.series == series; });
}

uint32_t PushStates::slots_of(meta::InodeNumber series) const {
  const io::MutexLock lock(mutex_);
  const auto found = series_.find(series);
  return found == series_.end() ? 0 : found->second;
}

std::optional<PushState> PushStates::of(meta::InodeNumber step) const {
  const io::MutexLock lock(mutex_);
  const auto found = steps_.find(step);
  return found == steps_.end() ? std::nullopt : std::optional(found->second.state);
}

void PushStates::set(meta::InodeNumber series, meta::InodeNumber step, PushState state) {
  const io::MutexLock lock(mutex_);
  if (!series_.contains(series)) return;
  Known& known = steps_[step];
  const bool goes_on = known.series == series && !known.state.is_settled();
  if (goes_on) state.since = known.state.since;
  known = {series, std::move(state)};
}

std::vector<std::pair<meta::InodeNumber, PushState>> PushStates::all(meta::InodeNumber series) const {
  const io::MutexLock lock(mutex_);
  std::vector<std::pair<meta::InodeNumber, PushState>> found;
  for (const auto& [step, known] : steps_) {
    if (known.series == series) found.emplace_back(step, known.state);
  }
  return found;
}

void PushStates::forget(meta::InodeNumber step) {
  const io::MutexLock lock(mutex_);
  steps_.erase(step);
}

bool PushStates::is_unpushed(meta::InodeNumber series, meta::InodeNumber step, const io::Digest& fingerprint) const {
  const io::MutexLock lock(mutex_);
  if (!series_.contains(series)) return false;
  const auto found = steps_.find(step);
  if (found == steps_.end()) return true;
  const PushState& state = found->second.state;
  return !state.is_settled() || state.fingerprint != fingerprint;
}

}  // namespace ckptfs::fs

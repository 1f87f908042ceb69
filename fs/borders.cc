#include "fs/borders.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ckptfs::fs {

namespace {
// In a stream the next write is on its way mostly, or comes as soon as one before it is answered.
constexpr std::chrono::milliseconds kSoon{1};
}  // namespace

Borders::Met Borders::meet(Border& head, Border& tail) {
  const std::lock_guard lock(mutex_);
  Met met{.alone = offered_.empty()};
  met.before = take_or_offer(head);
  met.after = take_or_offer(tail);
  return met;
}

// With mutex_ held.
Borders::Border* Borders::take_or_offer(Border& own) {
  if (own.bytes.empty()) return nullptr;
  const auto meets = [&](const Border* other) { return other->at == own.at && other->side != own.side; };
  const auto other = std::ranges::find_if(offered_, meets);
  if (other == offered_.end()) {
    own.state = Border::State::offered;
    offered_.push_back(&own);
    return nullptr;
  }
  Border* const taken = *other;
  offered_.erase(other);
  taken->state = Border::State::taken;
  hopeful_ = true;
  return taken;
}

void Borders::written(Border& taken, std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  taken.error = std::move(error);
  taken.state = Border::State::written;
  written_.notify_all();
}

Result<bool> Borders::withdraw(Border& offered) {
  std::unique_lock lock(mutex_);
  const auto is_written = [&] { return offered.state == Border::State::written; };
  if (hopeful_) written_.wait_for(lock, kSoon, is_written);
  if (offered.state == Border::State::offered) {
    hopeful_ = false;
    std::erase(offered_, &offered);
    return true;
  }
  written_.wait(lock, is_written);
  if (offered.error) return *offered.error;
  return false;
}

}  // namespace ckptfs::fs

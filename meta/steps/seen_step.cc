#include "meta/steps/seen_step.h"

#include <algorithm>
#include <cerrno>
#include <sstream>

namespace ckptfs::meta {
namespace {

constexpr const char* kSeenXattr = "user.ckptfs.seen";

std::string encode_seen(const SeenStep& seen) {
  std::ostringstream text;
  text << seen.series << ' ' << seen.changed.time_since_epoch().count() << ' ' << seen.changed_at.count() << ' '
       << seen.completed.time_since_epoch().count() << ' ' << seen.completed_at.count();
  return text.str();
}

Result<SeenStep> decode_seen(const std::string& text) {
  std::istringstream numbers(text);
  InodeNumber series = 0;
  int64_t changed = 0, changed_at = 0, completed = 0, completed_at = 0;
  if (!(numbers >> series >> changed >> changed_at >> completed >> completed_at)) {
    return Error(EIO, "the index holds a damaged record of when a step was seen");
  }
  const auto wall = [](int64_t time) { return WallTime(std::chrono::nanoseconds(time)); };
  return SeenStep{series, wall(changed), StoreTime(changed_at), wall(completed), StoreTime(completed_at)};
}

// When the step became complete, by the store's clock. Never 0, which means that it is not complete.
StoreTime completion_time(WallTime date, const Moment& now) {
  constexpr std::chrono::minutes kRecent{1};
  const auto age = now.wall - date;
  const bool recent = age >= age.zero() && age < kRecent;
  return std::max(recent ? now.store - age : now.store, StoreTime(1));
}

}  // namespace

SeenStep see_step(const std::optional<SeenStep>& before, InodeNumber series, WallTime changed,
                  const std::optional<WallTime>& completed, const Moment& now) {
  const bool known = before && before->series == series;
  SeenStep seen = known ? *before : SeenStep();
  seen.series = series;
  if (!known || seen.changed != changed) {
    seen.changed = changed;
    seen.changed_at = now.store;
  }
  if (completed && (seen.completed_at == StoreTime(0) || seen.completed != *completed)) {
    seen.completed = *completed;
    seen.completed_at = completion_time(*completed, now);
  }
  return seen;
}

Result<std::optional<SeenStep>> seen_step(const Store& store, InodeNumber step) {
  const auto text = store.index().xattr(step, kSeenXattr);
  if (!text && text.error().errno_value() == ENOENT) return std::optional<SeenStep>();
  if (!text) return text.error();
  TRY_ASSIGN(const SeenStep seen, decode_seen(text.value()));
  return std::optional(seen);
}

Result<> note_seen(Store& store, const StoreClock& clock, const std::vector<std::pair<InodeNumber, SeenStep>>& steps) {
  if (steps.empty()) return success();
  Tree::Change change = store.tree().begin();
  for (const auto& [step, seen] : steps) {
    const auto record = store.index().inode(step);
    if (!record && record.error().errno_value() == ENOENT) continue;
    TRY(record);
    if (record.value().nlink != 0) change.batch.put_xattr(step, kSeenXattr, encode_seen(seen));
  }
  clock.put(change.batch);
  return store.tree().commit(std::move(change));
}

}  // namespace ckptfs::meta

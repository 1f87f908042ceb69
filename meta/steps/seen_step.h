// Since when a step has been as it is, by the clock of the store: what rotation saw, kept with the step. What its files
// say of when they were written may be anything: they were copied with their times, or the wall clock was wrong.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "meta/index/store_clock.h"
#include "meta/store/store.h"
#include "meta/time.h"

namespace ckptfs::meta {

struct SeenStep {
  InodeNumber series = 0;  // where it was then
  WallTime changed;        // what its files and folders said
  StoreTime changed_at{};  // since when they have said so
  WallTime completed;
  StoreTime completed_at{};  // 0: it was not complete yet

  bool operator==(const SeenStep&) const = default;
};

struct Moment {
  WallTime wall;
  StoreTime store{};
};

// What is to be kept of a step that is in `series` now, was last changed at `changed` and completed at `completed`
// (none: it is not complete), where `before` was kept. What is dated less than a minute ago completed when it is dated:
// so steps that complete one soon after the other are in order, whichever is looked at first.
SeenStep see_step(const std::optional<SeenStep>& before, InodeNumber series, WallTime changed,
                  const std::optional<WallTime>& completed, const Moment& now);

Result<std::optional<SeenStep>> seen_step(const Store& store, InodeNumber step);
// Together with the clock. Steps that are gone are left out. Not durable on return.
Result<> note_seen(Store& store, const StoreClock& clock, const std::vector<std::pair<InodeNumber, SeenStep>>& steps);

}  // namespace ckptfs::meta

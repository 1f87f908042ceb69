// Which steps of a series stay, and which go: the policy as a pure function from facts to decisions. That a step may
// really go is asked once more right before (fs/steps/rotation.h).
//
// A complete step stays if any of the keep rules that are set keeps it. If none is set every step stays. If no step has
// the metric of keep_best, that rule keeps all. An incomplete step stays unless keep_partial is set, and an unknown one
// unless keep_unknown is; these take none that is newer than every complete one. The caps (max_bytes, min_free) then
// remove complete steps, the oldest first, even those that a rule keeps.
//
// A thinned step, which holds weights only, counts for the keep rules and the caps as a complete one does. But it is
// never the newest complete step, since no training can resume from it.
//
// If keep_full is set, the complete steps that stay are thinned, except for those that it keeps full and those that are
// never removed. As long as one is still to be thinned, max_bytes removes nothing, since thinning makes room, too.
//
// What is protected is never removed or thinned: meta/steps/protection.h, which also says what is newer. A step is as
// young as the younger of its two ages, by its files' dates and by the clock of the store.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meta/steps/ledger.h"
#include "meta/steps/policy.h"
#include "meta/steps/protection.h"

namespace ckptfs::meta {

struct Decision {
  bool stays = true;
  std::vector<Reason> reasons;  // all that keep it; or why it goes
  bool thins = false;           // it stays, but keep_full says that of it only the weights do
  std::string full_because{};   // else what keeps it full, where keep_full is set
};

struct Room {
  uint64_t series = 0;  // exclusive bytes of the series
  uint64_t free = 0;    // of the store
};
// What there would be once these steps (indices, ascending) have gone; asked for only where a cap is set.
using RoomWithout = std::function<Result<Room>(const std::vector<size_t>& gone)>;

struct Judgement {
  std::vector<Decision> decisions;    // a step each, as the facts
  std::vector<std::string> warnings;  // caps that cannot be met, steps of the future
};

// An error is one of `room`'s.
Result<Judgement> judge(const Policy& policy, const std::vector<StepFacts>& steps, const Moment& now,
                        const RoomWithout& room);

}  // namespace ckptfs::meta

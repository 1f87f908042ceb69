// Which steps of a series stay, and which go: the policy as a pure function from facts to decisions. That a step may
// really go is asked once more right before (fs/steps/rotation.h).
//
// A complete step stays if any of the keep rules that are set keeps it. If none is set every step stays. If no step has
// the metric of keep_best, that rule keeps all. An incomplete step stays unless keep_partial is set, which takes none
// that is newer than every complete one. The caps (max_bytes, min_free) then remove complete steps, the oldest first,
// even those that a rule keeps.
//
// A thinned step, which holds weights only, counts for the keep rules and the caps as a complete one does. But it is
// never the newest complete step, since no training can resume from it.
//
// If keep_full is set, the complete steps that stay are thinned, except for those that it keeps full and those that are
// never removed. As long as one is still to be thinned, max_bytes removes nothing, since thinning makes room, too.
//
// Never removed: the newest complete step, a pinned one, one that `latest` or another tracker file names, one that the
// newest trainer_state.json names as best_model_checkpoint, one that is in use, one that cannot be judged, one that
// whoever set the rules could not remove by hand, and of the steps that are to be pushed to a remote the newest
// hold_unpushed, complete or not: a machine of several cannot tell alone whether one is complete. A seal does not
// protect: it forbids changes of a step, not its removal.
//
// Newer is told in two ways: by the order in which rotation saw the steps complete (meta/steps/ledger.h), and by
// their numbers. They differ where an old step is copied in, or written to once more, by an evaluation say: what
// training saved last has the highest number then. They also differ where a run starts again at small numbers. So a
// step's rank is the better of its places in the two orders, the newest first. A step that only one of the two takes
// for old stays: a series may keep up to twice what a rule says, never less. Of steps that were seen at one moment the
// dates of their files decide, and nothing else does: the wall clock may have been wrong, and a copy may keep its
// times. Likewise a step is as young as the younger of its two ages, by its files' dates and by the clock of the store.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "meta/formats/completeness.h"
#include "meta/steps/ledger.h"
#include "meta/steps/policy.h"
#include "meta/time.h"

namespace ckptfs::meta {

struct StepFacts {
  std::string tag;
  uint64_t number = 0;
  formats::Completeness completeness = formats::Completeness::unknown;
  WallTime completed;  // complete ones; of others, when anything in it changed last
  StoreTime seen{};    // since when rotation has seen it so
  bool pinned = false;
  bool latest = false;           // `latest` or another tracker file of the series names it
  bool best_model = false;       // a Trainer will load it at its end
  bool in_use = false;           // has a file open, or had a moment ago
  std::optional<double> metric;  // the one that keep_best asks for
  bool out_of_reach = false;     // who set the rules could not remove it
  bool untold = false;           // it may have one, which cannot be read now: as one that cannot be judged
  std::string not_thinned{};     // why not, if that was tried and failed
  bool unpushed = false;         // its series has a remote, and it is not committed there yet
};

// The two orders. Was `a` seen to complete later; has it the higher number? Ties are broken by dates, then by names.
bool is_seen_later(const StepFacts& a, const StepFacts& b);
bool is_higher(const StepFacts& a, const StepFacts& b);

// Why a step stays or goes.
enum class Reason {
  // stays, whatever the rules say
  newest,
  pinned,
  latest,
  best_model,
  in_use,
  unknown,
  out_of_reach,
  unpushed,
  // stays by a rule, or because none is set
  keep_last,
  keep_every,
  keep_for,
  keep_best,
  no_rule,
  // incomplete: stays as long as this allows, or for good where it is not set
  keep_partial,
  // goes
  no_rule_keeps_it,
  keep_partial_is_over,
  max_bytes,
  min_free,
};
const char* name_of(Reason reason);  // "keep_last", "in use"

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

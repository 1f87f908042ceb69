// From parts to a commit: when a step is committed (docs/remote-format.md, "Deciding").
//
// The push of slot 0 leads. Its part names the save: its order, tag and id. Each other slot looks for a part of slot 0
// that is of the same save as its own files (save_facts.h), and about which nothing is decided, and puts its own part
// with that name. So a part goes with one decision, for ever. Once there are parts of all slots that go with one
// decision, and their union is not incomplete, anybody makes the commit. The collector makes a void in its place if
// they do not come for a week. Both are made, never replaced: so there is one of the two.
//
// Why a commit is one save, whatever the files are by then, and whatever any clock or process does meanwhile: a part
// never changes, and says of which save it is. It was put while its files were what it says. So nobody has to hold
// anything until the commit, and a request that is on its way for days does no harm.
//
// If a slot changes its files, or its part is dead, it pushes again: slot 0 with a new id, which the others then join;
// another slot with the same name, of which the newest part counts. Of the same save the order is the same, so a step
// that was changed later does not become the newest one.
//
// Thread safety: one call for a tag at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/push.h"
#include "meta/remote/step_image.h"

namespace ckptfs::meta::remote {

struct TagStatus {
  enum class State {
    committed,   // with exactly the part that this slot has now
    waits,       // for the parts of `missing`
    incomplete,  // files are missing; `reason` tells which
    refused,     // the parts have no union; `reason` tells
    push_again,  // a new part is needed: slot 0 has pushed the save again, or ours is gone
    ended,       // there will be no commit with this part, which was undecided for days. A new one is needed
  };
  State state = State::waits;
  std::vector<uint32_t> missing;  // slots
  std::string reason;             // in words; empty if committed
  std::optional<CommittedStep> commit;
  std::vector<std::string> notes;  // of the commit
};

struct Judgement {
  PartList parts;                      // that were read, of slots 0, 1, ...
  std::vector<std::string> notes;      // of their union
  std::optional<TagStatus> unwelcome;  // why they cannot be committed
};
// Reads the parts, and judges them. `parts`: of slots 0, 1, ..., that go with one decision.
Result<Judgement> judge(io::ObjectStore& store, const std::vector<PushName>& parts, const std::string& folder,
                        const io::RequestLimits& limits);
// Makes the commit of parts that are welcome. It is no error if something else was decided.
Result<> commit(io::ObjectStore& store, const DecisionName& decision, const Judgement& judged, const std::string& host,
                const io::RequestLimits& limits);

// What decide() has found out, so that its next call asks for less. Begin with a new one for each PushedPart.
struct DecisionMemory {
  Judgement judged;
  int unlisted = 0;  // so often in a row the slot's part was not in the list
};

// Goes as far as it can, and says how far that is. `own`: what push_part() returned for this image.
Result<TagStatus> decide(io::ObjectStore& store, const Slot& slot, const PushedPart& own, KnownParts& known,
                         DecisionMemory& memory, const PushSettings& settings);

}  // namespace ckptfs::meta::remote

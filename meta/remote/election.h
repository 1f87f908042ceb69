// From parts to a commit: who may commit a step, and when (docs/remote-format.md, "Deciding").
//
// n is the lowest undecided number of the tag. The list is the newest part of each slot. When it is whole and its union
// is not incomplete, each slot votes once at n for the list, if its own files are still those of its part. N equal
// votes: anyone writes the commit. A vote for another list than the current one: anyone writes a void, and all look
// again at n + 1. With one slot no vote is needed. Every object is made, never replaced. A lost reply looks like a lost
// race, so a slot that lost reads, compares, and goes on.
//
// Why a commit is what all slots held at one moment, whatever any clock says: before its vote each slot i (1) lists the
// parts, (2) asks its image whether it still holds, at c_i, and (3) votes. The image was made before the part was put
// at p_i, and holds without a break until c_i at least. Slot i saw all parts of the list before it asked, so every p_j
// is before every c_i. So from the last p_j to the first c_i all slots held their parts. How long a vote is on its way
// does not matter. With one slot the commit takes the place of the vote.
//
// A part is in one commit at most. A commit's tombstone lets the collector take the files of its parts, also while such
// a part waits to be in another commit, and a process may be stopped for days before its last request. So a slot whose
// part was committed, and that is to vote again since another slot has changed, pushes a new part first. The store
// itself copies the files for that, if the commit stands.
//
// A part that stays undecided for days is ended by the collector, with a void that names it, at the number that is
// undecided. Votes at that number can no longer become a commit. Who votes at a later one has read that void before,
// with a get: what a get tells is never late. So a part that was ended is never committed.
// Its slot is told of that also while others are missing: if the parts of two slots were ended, each would wait for the
// other.
//
// A part that an image of a later start of the mount only found again has no such image from p_i on: the files may have
// changed and changed back. So such a slot first makes a void itself. Who votes at a later number asked its image
// after that, when the new image was there already.
//
// A commit of a tag that was committed before, with the save that the last one has and other notes, is late
// (CommittedStep::late), if another step is the newest: who adds an evaluation's results to an old step does not make
// it the newest. A step that was saved again is newer than all.
//
// Why it makes progress: a void never does harm, since it commits nothing. Once no slot changes its files, all slots
// see the same list. At n there may be votes for older lists, which stand. Who sees one writes a void. From n + 1 on
// all votes are for the current list: none differs, so none is voided, and N of them come. Votes are read before the
// parts are listed. So a vote differs only if a part has really come since, and not because we know less than the
// voter. A process that was stopped, or a late list, may make one void or one vote more, which costs one number.
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
#include "meta/remote/tag_history.h"

namespace ckptfs::meta::remote {

struct TagStatus {
  enum class State {
    committed,   // with exactly the part that this slot has now
    waits,       // for the parts or votes of `missing`, or for this slot's files to be quiet (none missing)
    incomplete,  // files are missing; `reason` tells which
    refused,     // the parts have no union, or two mounts are one slot; `reason` tells
    push_again,  // a new part is needed: a commit has this one already
    ended,       // the collector has ended this part, since it was undecided for days. A new one is needed
  };
  State state = State::waits;
  std::vector<uint32_t> missing;  // slots
  std::string reason;             // in words; empty if committed
  std::optional<CommittedStep> commit;
  std::vector<std::string> notes;  // of the commit
};

// What advance() has found out, so that its next call asks for less: the parts are read again only if the list of their
// names has changed. Begin with a new one for each PushedPart.
struct ElectionMemory {
  std::vector<PushName> listed;  // the names of all parts of the tag, as `parts` was made; empty: nothing is known
  PartList parts;
  std::vector<std::string> notes;      // of their union
  bool same_save = false;              // they hold the save that the last commit of the tag has (union.h)
  std::optional<TagStatus> unvotable;  // why nobody can vote for them
  uint64_t decided = 0;                // up to this number; lists may lag behind
  bool may_vote = false;               // a part that was found: the void has been made
  int unlisted = 0;                    // so often in a row the slot's part was not in the list
  TagHistory history;
};

// Goes as far as it can, and says how far that is. `own`: what push_part() returned for this image.
Result<TagStatus> advance(io::ObjectStore& store, const Slot& slot, const StepImage& image, const PushedPart& own,
                          ElectionMemory& memory, const PushSettings& settings);

}  // namespace ckptfs::meta::remote

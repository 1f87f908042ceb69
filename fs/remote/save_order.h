// Which place the saves of a series have among each other, and among those that are in its remote
// (meta::remote::Order).
//
// A save gets its place when it is first seen, whether it is whole by then or not: the next place by the clock of the
// store. It keeps it, whatever is added to the step later, until all files of the step that a save writes have been
// written again. A step that no training saved here, as one that was copied in, goes before the first one with a higher
// number: bringing back an old checkpoint does not make it the newest. It is kept in the ledger (meta/steps/ledger.h).
// Stateless; any thread.
#pragma once

#include <string>
#include <vector>

#include "fs/steps/step_facts.h"
#include "io/result.h"
#include "meta/remote/save_facts.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

// Where the saves of a series are pushed.
struct PushedTo {
  std::string remote;  // its id
  meta::InodeNumber series = 0;
  uint32_t term = 0;  // in which the slot is owned now (meta/remote/slot_owner.h)
};
// A save has no place in another series or another remote.
Result<> order_saves(meta::Store& store, const meta::StoreClock& clock, const PushedTo& to,
                     const std::vector<StepStatus>& steps);
// Has its newest save no place yet, as far as it was seen?
bool is_saved_again(const StepStatus& step);

// Of which save the step's files are, by the wall clock. `attempt`: the agreed id; empty: there is none.
meta::remote::SaveFacts save_facts_of(const StepStatus& step, const meta::StoreClock& clock, std::string attempt);

// Notes the id that the ranks agreed on for the save. To be called when all of them have written.
Result<> note_agreed(meta::Store& store, meta::InodeNumber step, const std::string& id);
// That id. Empty: there is none, a file of the save was written again since, or another program has added one.
Result<std::string> agreed_save(const meta::Store& store, meta::InodeNumber step, const meta::LedgerEntry& ledger);

}  // namespace ckptfs::fs

// What users say of steps that nothing tells by itself: of a series, when its steps are complete (the rule
// `complete_when`); of a step, that it is whole (user.ckptfs.whole). Stateless.
#pragma once

#include <string>

#include "meta/formats/completeness_judgement.h"
#include "meta/steps/ledger.h"
#include "meta/store/store.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs {

struct Declared {
  bool whole = false;         // somebody has said so
  std::string complete_when;  // of its series; empty: nobody has said that
};
Result<Declared> declared_of(const meta::Tree& tree, meta::InodeNumber step);

// Does this tracker file name the step? Empty: it does.
Result<std::string> why_not_named(const meta::Tree& tree, meta::InodeNumber step, const std::string& tracker,
                                  const meta::LedgerEntry& ledger);

// `judgement`: by the files of the step. What these lack stays lacking: no marker makes up for a lost shard. A doubt
// makes unknown.
//   - A file of the step: the step is complete with it. Without it the step is incomplete, if who wrote to it made one
//     in a step before, and its own files do not make it complete; else unknown.
//   - A tracker file: the step is complete once it was named, whatever is named since, and unknown before.
//   - Either one from before another run wrote to the step tells nothing.
//   - Quiet: where its files do not tell, the step is complete. That nobody writes to it is asked elsewhere.
// What was known to be whole before all that stays so, and what was set aside is not looked at. What a user calls whole
// is complete, but for what was thinned.
Result<meta::formats::CompletenessJudgement> heed_declared(const meta::Store& store, meta::InodeNumber step,
                                                           const meta::LedgerEntry& ledger, const Declared& declared,
                                                           meta::formats::CompletenessJudgement judgement);

}  // namespace ckptfs::fs

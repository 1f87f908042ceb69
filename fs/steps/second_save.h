// Is a step of two saves? A run that goes back saves a step anew, over the whole one, and may die half-way. What was
// whole and is written again by another run is whole again once each file that a save writes is newer.
//
// The kernel's times of the files tell that, not their dates, which anybody may set. If the wall clock was set back
// between the two saves, nothing tells it.
//
// Stateless.
#pragma once

#include <string>

#include "fs/views/files_of_step.h"
#include "meta/formats/completeness_judgement.h"
#include "meta/formats/step_names.h"
#include "meta/steps/ledger.h"
#include "meta/time.h"

namespace ckptfs::fs {

// When the live files of a step were written. Frozen ones tell nothing: a save may name what it shares with another.
struct SaveTimes {
  meta::WallTime newest;      // of all of them; zero: none is live
  std::string first_written;  // of those that a save writes first, the newest
  meta::WallTime first_written_at;
  std::string oldest;  // of those that each save writes
  meta::WallTime oldest_at;
};
SaveTimes save_times_of(const views::FilesOfStep& files, const meta::formats::StepNames& names);

// What is to be thought of a step that is complete by its files.
meta::formats::CompletenessJudgement heed_second_save(const SaveTimes& times, const meta::LedgerEntry& ledger,
                                                      meta::formats::CompletenessJudgement judgement);

}  // namespace ckptfs::fs

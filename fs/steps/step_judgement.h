// What is to be thought of a step, given what its files tell.
//   - *Declared*: what users say of steps that nothing tells by itself: of a series, when its steps are complete (the
//     rule `complete_when`); of a step, that it is whole (user.ckptfs.whole).
//   - *Of two saves*: a run that goes back saves a step anew, over the whole one, and may die half-way. What was whole
//     and is written again by another run is whole again once each file that a save writes is newer. The kernel's times
//     of the files tell that, not their dates, which anybody may set. If the wall clock was set back between the two
//     saves, nothing tells it.
//   - *Of two runs*: two trainings wrote it in turns, new or old. The last writers of its files show that, whatever the
//     clocks say.
//   - *With symlinks*: they may lead to what it lacks.
//
// Stateless.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "fs/views/files_of_step.h"
#include "meta/formats/completeness_judgement.h"
#include "meta/formats/step_names.h"
#include "meta/steps/ledger.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

struct Declared {
  bool whole = false;         // somebody has said so
  std::string complete_when;  // of its series; empty: nobody has said that
};
Result<Declared> declared_of(const meta::Tree& tree, meta::InodeNumber step);

// Does this tracker file name the step? Empty: it does.
Result<std::string> why_not_named(const meta::Tree& tree, meta::InodeNumber step, const std::string& tracker,
                                  const meta::LedgerEntry& ledger);

// Heeds what users say of the step. `judgement`: by its files. What these lack stays lacking: no marker makes up for a
// lost shard. A doubt makes unknown.
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

// When the live files of a step were written. Frozen ones tell nothing: a save may name what it shares with another.
struct SaveTimes {
  meta::WallTime newest;      // of all of them; zero: none is live
  std::string first_written;  // of those that a save writes first, the newest
  meta::WallTime first_written_at;
  // Of the checkpoint files (formats::is_checkpoint_file) the newest. If none of them is live, or the layout tells
  // none, of those that are no notes; zero: there is none.
  meta::WallTime saved_at;
  std::string oldest;  // of those that each save writes
  meta::WallTime oldest_at;
  meta::WallTime others_from;      // of those that are no notes the oldest; zero: there is none
  std::set<uint64_t> all_writers;  // the programs that wrote these last
  // The programs (meta::program_id) that wrote last what a save writes, first or otherwise, and one file of each; and
  // who wrote a Trainer's state, which an evaluation may edit.
  std::map<uint64_t, std::string> writers;
  uint64_t state_writer = 0;
};
SaveTimes save_times_of(const views::FilesOfStep& files, const meta::formats::StepNames& names);

// Is it complete by its files, and has nobody changed one that a save writes since it was found whole? Then no word of
// users has to tell anew that it is whole: others have only added something, as a converter its model.
bool is_as_it_was(const SaveTimes& times, const meta::LedgerEntry& ledger,
                  const meta::formats::CompletenessJudgement& by_files);

// What is to be thought of a step that is complete by its files.
meta::formats::CompletenessJudgement heed_second_save(const SaveTimes& times, const meta::LedgerEntry& ledger,
                                                      meta::formats::CompletenessJudgement judgement);

// What an incomplete step lacks may be behind a symlink in it, of which only the name is known. Then the step is
// unknown.
Result<meta::formats::CompletenessJudgement> heed_symlinks(const meta::Tree& tree, meta::InodeNumber step,
                                                           meta::formats::CompletenessJudgement judgement);

}  // namespace ckptfs::fs

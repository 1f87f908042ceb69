// What rotation and `ckptfs ls` need to know of the steps of a series: whether each is complete, since when, whether
// somebody uses it, and its metric.
//
//   - *Complete* is read from the step's files (meta/formats/completeness.h). What is missing makes a step incomplete.
//     What is unreadable makes it unknown. Only what a kind of checkpoint says of itself makes it complete.
//   - *In use* is what the node table has open, or had within twice the quiet time (OpenFileTable::used_since).
//   - *Age* is told by two clocks: by the dates of the files, and by the clock of the store since rotation first saw
//     the step as it is (meta/steps/ledger.h, meta/index/store_clock.h). A step is old only by both.
//
// Reading a step's headers takes a while, up to 2 GiB where somebody wants it so. What was found is kept until a file
// of the step changes, whatever was found.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fs/base/turns.h"
#include "fs/open/file_sync.h"
#include "fs/open/open_files.h"
#include "fs/open/write_errors.h"
#include "fs/steps/push_states.h"
#include "fs/steps/save_history.h"
#include "fs/steps/step_judgement.h"
#include "fs/steps/tracker_files.h"
#include "io/digest.h"
#include "io/mutex.h"
#include "meta/formats/completeness.h"
#include "meta/steps/ledger.h"
#include "meta/steps/retention.h"
#include "meta/steps/steps.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

// What the files of a step tell, as they are.
struct StepContent {
  io::Digest fingerprint{};  // changes with any of them; zero: one is being written
  SaveTimes times;
  meta::WallTime touched;  // when any of them was written last, as their mtimes tell
  unsigned ranks = 0;      // that have files in it; 0: its files name none
  bool damaged = false;    // a file of it does not hold what was written
};

struct StepStatus : StepContent {
  meta::InodeNumber inode = 0;
  meta::StepRecord record;
  meta::StepFacts facts;
  std::string reason;    // why it is not complete
  bool failed = false;   // it could not be inspected: `reason` is the error
  bool passing = false;  // what failed may go well in a moment: there were no descriptors, or no memory
  uint64_t files = 0;
  uint64_t bytes = 0;                       // apparent
  meta::WallTime changed;                   // when anything in it changed last
  std::chrono::seconds quiet{};             // since then
  std::optional<meta::WallTime> completed;  // whether or not it is quiet
  meta::LedgerEntry ledger;
  meta::WallTime saved;             // when its files but the notes changed last, as their mtimes tell
  bool has_foreign_metric = false;  // what keep_best asks for may be of another save than the weights

  // It was found whole as it is now. A touch or a chown since then counts as a change: or else all its files would seem
  // to be of a save after it had been whole.
  bool is_known_whole() const { return ledger.is_known_whole() && ledger.whole >= times.newest; }
};

// "complete", "weights", "sealed", "being removed", "damaged", "incomplete", "unknown"
const char* state_of(const StepStatus& step);

// A child of a series that is no step, and why.
struct NoStep {
  std::string name;
  std::string reason;
  bool was_step = false;  // it is being removed
};

struct SeriesStatus {
  uint32_t owner = 0;
  std::vector<StepStatus> steps;
  std::vector<NoStep> others;
  meta::WallTime changed;  // when anything in it changed last; of what is no step only names count
  bool written = false;    // somebody has a file of a step open for writing
  Latest latest;
  // Why nothing may be removed: there is a tracker file, and nobody can tell what it names. Of all steps; of the steps
  // of a user whose file concerns nobody else's.
  std::string unclear;
  std::map<uint32_t, std::string> unclear_to;
  // The newest of each owner's steps of which `holds` is true (meta::newest_of).
  std::vector<const StepStatus*> newest(const meta::Holds& holds) const;
  // Empty: nothing is unclear of that user's steps.
  const std::string& why_unclear(uint32_t user) const {
    const auto own = unclear_to.find(user);
    return own == unclear_to.end() ? unclear : own->second;
  }
};

// In words, why rules and remotes do nothing with the series: none of its folders is a step, though one has a number at
// the end of its name. Empty: there are steps, or there is nothing that somebody could take for one.
std::string why_no_steps(const SeriesStatus& series);

class StepFactsFinder {
 public:
  // `quiet`: how long nothing must have happened to a step. `readings`: of all that a step holds.
  StepFactsFinder(meta::Store& store, const OpenFileTable& files, const WriteErrors& write_errors, FileSync& file_sync,
                  Turns& readings, SaveHistory& saves, const PushStates& pushes, std::chrono::seconds quiet)
      : store_(store),
        tree_(store.tree()),
        files_(files),
        write_errors_(write_errors),
        file_sync_(file_sync),
        readings_(readings),
        saves_(saves),
        pushes_(pushes),
        quiet_(quiet) {}

  // To be called before anything else.
  Result<> start();
  const meta::StoreClock& clock() const { return *clock_; }
  Result<StepStatus> inspect_step(meta::InodeNumber step);
  // Inspections end with ECANCELED from now on, also those that are under way.
  void stop() { stopping_ = true; }
  // `metric`: what keep_best asks for; empty: nothing. `watches`: what is seen of the steps is recorded with them. A
  // series is watched if it has rules.
  Result<SeriesStatus> inspect_series(meta::InodeNumber series, const std::string& metric, bool watches);
  // Syncs what was written to the step, as it was inspected; its names are durable when the index is synced. An error
  // names the file; its step is no longer complete.
  Result<> make_durable(const StepStatus& status);
  // Does somebody have a file of the step open, or had within twice the quiet time?
  Result<bool> is_in_use(meta::InodeNumber step) const;
  Result<bool> is_mapped_for_writing(meta::InodeNumber step) const;
  // The inode is gone.
  void forget(meta::InodeNumber inode);

 private:
  using Inodes = std::unordered_set<meta::InodeNumber>;
  struct CachedFacts : StepContent {
    meta::formats::CompletenessJudgement judgement;
    timespec completed{};
    bool lacks_meta = false;    // it would be incomplete if Lightning had saved it
    bool probed = false;        // it is known whether a file is mapped for writing, where that matters
    bool may_be_model = false;  // and nothing but that
    bool saved_alone = false;   // by `save`, and nothing was added
    bool swap_only = false;     // its kind: whoever made it, no training resumes from it alone
    bool mapped = false;        // for writing
    bool durable = false;       // synced since it was judged
    std::map<std::string, Result<std::optional<double>>> metrics;  // by name, as its files tell them, or cannot
    std::optional<std::string> best_model;                         // what its trainer_state.json names
  };

  // The last changes of a folder and of the folders below it.
  struct Changes {
    timespec names{};  // when names came or went in one of them, last
    timespec any{};    // or they were changed otherwise, or moved
  };

  struct Circumstances {
    Inodes used;
    Inodes pinned;
    bool watches = false;
  };
  Result<StepStatus> inspect_step(meta::InodeNumber step, const std::string& tag, const Circumstances& now);
  std::chrono::seconds quiet_of(const StepStatus& status, bool watches) const;
  Result<> see(meta::InodeNumber series, std::vector<StepStatus>& steps, bool watches) const;
  Inodes used() const;
  bool is_written(meta::InodeNumber series) const;
  // What is kept of the step, if it is still what it was; else null.
  CachedFacts* known_as(meta::InodeNumber step, const io::Digest& fingerprint) REQUIRES(mutex_);
  std::optional<CachedFacts> kept_of(meta::InodeNumber step, const io::Digest& fingerprint);
  Result<std::optional<CachedFacts>> cached(meta::InodeNumber step, const io::Digest& fingerprint);
  // If no file has changed, the answer is the cached one.
  Result<CachedFacts> judge(meta::InodeNumber step, const Changes& changes, const Declared& declared,
                            const Inodes& used, StepStatus& status);
  Result<Changes> changes_in(meta::InodeNumber top) const;
  Result<std::optional<std::string>> damage_in(const std::vector<meta::InodeNumber>& files) const;
  Result<std::optional<double>> metric_of(const StepStatus& status, const std::string& name);
  Result<> refuse_metric_of_another(const StepStatus& status, const std::string& name) const;
  Result<std::string> best_model_of(const StepStatus& status);
  void find_best_models(SeriesStatus& status);

  meta::Store& store_;
  meta::Tree& tree_;
  const OpenFileTable& files_;
  const WriteErrors& write_errors_;
  FileSync& file_sync_;
  Turns& readings_;
  SaveHistory& saves_;
  const PushStates& pushes_;
  const std::chrono::seconds quiet_;
  const std::string here_ = meta::process_place();
  std::optional<meta::StoreClock> clock_;
  std::atomic<bool> stopping_{false};
  io::Mutex mutex_;
  std::unordered_map<meta::InodeNumber, CachedFacts> known_ GUARDED_BY(mutex_);  // by step
};

}  // namespace ckptfs::fs

// Who writes to the steps of the series that have rules or a remote. It is recorded in the ledger
// (meta/steps/ledger.h), so that it outlives the daemon, before whoever writes is answered.
//
// Watching begins with the rule or the remote: who wrote before is not known. Who removes counts, because a step that
// is half removed is none to resume from either. A fetch does not count: its folder is no step yet.
//
// Thread safety: all of it. Locks: noting_, while the ledger is changed, then mutex_ (a leaf).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "fs/steps/step_facts.h"
#include "io/mutex.h"
#include "io/result.h"
#include "meta/steps/ledger.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class StepWriters {
 public:
  struct Written {
    meta::InodeNumber step = 0, series = 0;
    uint32_t owner = 0;
    // All of the step, if the ledger has changed. None: it is known already that this one writes.
    const std::vector<meta::StepWriter>* writers = nullptr;
  };
  // `step_facts` has the clock, and need not be there before the first call. `tell`: called at each writing, from the
  // thread of whoever writes.
  StepWriters(meta::Store& store, StepFactsFinder& step_facts, std::function<void(const Written&)> tell)
      : store_(store),
        tree_(store.tree()),
        step_facts_(step_facts),
        tell_(std::move(tell)),
        here_(meta::process_place()) {}

  enum Purpose : unsigned { kRules = 1, kRemote = 2 };
  void watch(meta::InodeNumber series, Purpose purpose);
  void unwatch(meta::InodeNumber series, Purpose purpose);

  // Somebody makes or removes something in `folder`, or has just made it. Quick where no series is watched.
  void note(meta::InodeNumber folder, const meta::Caller& caller);
  // Likewise. Somebody has made the file, empties it or sets its size; or opens it for nothing but writing. What opens
  // it so and writes nothing, as touch, is a command.
  void note_written(meta::InodeNumber file, const meta::Caller& caller, bool empties);
  // Likewise. Somebody has removed or replaced what had this name in `folder`. `lost` is still in the index.
  void note_lost(meta::InodeNumber folder, const std::string& name, meta::InodeNumber lost, const meta::Caller& caller);
  // What a file that this caller makes is to keep of him (NewNode::writer). 0: it has ended, cannot be seen, or no
  // series is watched.
  uint64_t program_of(const meta::Caller& caller) const;
  // Something has a new name, so that what names told may be wrong.
  void names_changed();
  // The step was found whole. If more is known of who writes to it than when it was inspected, if it was written to
  // since, or if somebody uses it, nothing is noted, and false returned. `done` is called if it is noted, before
  // anybody else is.
  Result<bool> note_whole(const StepStatus& step, const std::function<void()>& done);
  // The tracker file that tells when the step is complete names it.
  Result<> note_named(meta::InodeNumber step);
  // The inode is gone.
  void forget(meta::InodeNumber inode);

 private:
  struct Noted {
    meta::InodeNumber step = 0;  // 0: nothing is noted
    uint64_t program = 0;        // 0: it has ended
  };
  Result<Noted> try_note(meta::InodeNumber folder, const meta::Caller& caller);
  // The processes of the writer's launch that have ended.
  Result<std::set<meta::Process>> ended_of_launch(meta::InodeNumber step,
                                                  const std::optional<meta::StepWriter>& writer) const;
  Result<> try_note_written(meta::InodeNumber file, const meta::Caller& caller, bool empties);
  Result<bool> is_training(const Noted& noted) const;
  Result<> try_note_lost(meta::InodeNumber folder, const std::string& name, meta::InodeNumber lost,
                         const meta::Caller& caller);
  bool tells_another_run(const Noted& noted, uint64_t before) const;
  Result<> note_overwritten(const Noted& noted, meta::InodeNumber folder, const std::string& name, uint64_t before)
      REQUIRES(noting_);
  std::string path_in(meta::InodeNumber step, meta::InodeNumber folder, std::string name) const;
  void warn(meta::InodeNumber folder, const Error& error) const;
  Result<meta::InodeNumber> step_above(meta::InodeNumber folder);
  bool is_known(meta::InodeNumber step, const std::optional<meta::StepWriter>& writer) const;
  Result<meta::LedgerEntry> change(meta::InodeNumber step, const std::function<void(meta::LedgerEntry&)>& change)
      REQUIRES(noting_);

  meta::Store& store_;
  meta::Tree& tree_;
  StepFactsFinder& step_facts_;
  const std::function<void(const Written&)> tell_;
  const std::string here_;
  std::atomic<bool> watches_{false};  // any series
  io::Mutex noting_;                  // so that known_ is what the ledger says
  mutable io::Mutex mutex_;
  std::unordered_map<meta::InodeNumber, unsigned> series_ GUARDED_BY(mutex_);          // and their purposes
  std::unordered_map<meta::InodeNumber, meta::LedgerEntry> known_ GUARDED_BY(mutex_);  // of steps written to lately
};

}  // namespace ckptfs::fs

// Which process wrote to each step of the series that have a remote: when the newest of them began. A run that goes
// back and saves a step again on one node must not have the new files committed with the old ones of another node. So a
// slot does not vote for a step once a younger process has written to that step's number or to one below it: such a
// process is on its way to saving this step, too.
//
// A command (mkdir, cp) has just begun when it first writes. It is no run, and does not count. Nor does a fetch.
//
// Kept with each step in the index, so that it outlives the daemon, by the clock of the store
// (meta/index/store_clock.h): the wall clock may be set back between a run and the next one. Thread safety: all of it.
// Locks: noting_, while a step's record is changed, then mutex_ (a leaf).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "fs/steps/step_facts.h"
#include "io/mutex.h"
#include "io/result.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class SeriesWriters {
 public:
  // `step_facts` has the clock, and need not be there before the first call.
  SeriesWriters(meta::Store& store, const StepFactsFinder& step_facts) : store_(store), step_facts_(step_facts) {}

  void watch(meta::InodeNumber series);
  void unwatch(meta::InodeNumber series);

  // Somebody makes or removes something in `folder`, or writes to a file of it. Quick where no series is watched.
  void note(meta::InodeNumber folder, const meta::Caller& caller);

  // Has a process that is younger than all writers of this step written to a step of the series whose number is not
  // above this one's? Then it says so, in words; else it is empty.
  Result<std::string> younger_than(meta::InodeNumber series, meta::InodeNumber step) const;

 private:
  Result<> try_note(meta::InodeNumber folder, const meta::Caller& caller);
  // In nanoseconds of the store's clock, which may be negative. None: nobody knows who wrote it.
  Result<std::optional<int64_t>> newest_of(meta::InodeNumber step) const;

  meta::Store& store_;
  const StepFactsFinder& step_facts_;
  std::atomic<bool> watches_{false};  // any series
  io::Mutex noting_;                  // so that an older process does not replace a younger one
  mutable io::Mutex mutex_;
  std::unordered_set<meta::InodeNumber> series_ GUARDED_BY(mutex_);
  std::unordered_map<meta::InodeNumber, int64_t> newest_ GUARDED_BY(mutex_);  // of steps that were written to lately
};

}  // namespace ckptfs::fs

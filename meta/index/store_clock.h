// A clock that only counts up, whatever the wall clock is set to: for how long the store has existed while a machine
// was on. It runs by the time since boot. After another boot it goes on from what the index holds, by the time since
// that boot: the time in which the machine was off does not count.
//
// What is recorded by this clock is recorded in one batch with the clock itself (put), so that no later reading is
// before it, whatever a crash takes.
//
// Thread safety: all of it.
#pragma once

#include <chrono>

#include "meta/index/index.h"

namespace ckptfs::meta {

using StoreTime = std::chrono::nanoseconds;  // since the store was made

class StoreClock {
 public:
  static Result<StoreClock> load(const Index& index);

  StoreTime now() const;
  // The time at this boot. It stays the same until the next boot, whoever loads the clock. May be negative.
  StoreTime at_boot() const { return known_ - at_; }
  void put(Batch& batch) const;
  // Records how far the clock is. Not durable on return.
  Result<> note(Index& index) const;

 private:
  StoreClock(StoreTime known, std::chrono::nanoseconds at, uint64_t boot) : known_(known), at_(at), boot_(boot) {}

  StoreTime known_;              // as of `at_`
  std::chrono::nanoseconds at_;  // since boot
  uint64_t boot_;
};

}  // namespace ckptfs::meta

// Which series rotation looks at next. One user's series do not delay the rules of another's:
//
//   - Each owner's series come in rounds. Between two rounds the owner rests 50 times as long as the first one took,
//     and at least an interval. So whoever has much to look at is looked at rarely, and costs a fiftieth of a
//     processor.
//   - Owners that do not rest take turns, a series each.
//   - After a wake(), that is when something has happened that may have to be acted on, the rests are as long as the
//     rounds before them were. After a round that was shorter than the interval there is none.
//
// Not thread-safe. It has no clock: who asks says when it is.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "meta/types.h"

namespace ckptfs::fs {

class SeriesQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SeriesQueue(Clock::duration interval) : interval_(interval) {}

  // Does nothing if the owner's series is there already.
  void add(meta::InodeNumber series, uint32_t owner);
  void remove(meta::InodeNumber series);
  // The series to be looked at now; none: all owners rest. Afterwards done() or remove() is called.
  std::optional<meta::InodeNumber> next(Clock::time_point now);
  // It took so long. `unfinished`: it comes again in this round.
  void done(meta::InodeNumber series, Clock::duration took, bool unfinished = false);
  void wake();
  // How often, since the last call, all series that there were at the time had been looked at.
  uint64_t take_rounds() { return std::exchange(rounds_, 0); }

 private:
  struct Owner {
    std::set<meta::InodeNumber> series;
    bool in_round = false;
    bool woken = false;                  // in this round
    std::deque<meta::InodeNumber> left;  // of this round; they may have been removed meanwhile
    Clock::duration took{};              // by this round so far, or by the last one
    Clock::time_point ended{};           // when the last round did
    Clock::time_point due{};             // when the next one begins
  };

  std::optional<meta::InodeNumber> next_of(Owner& owner, Clock::time_point now) const;
  Clock::duration short_rest(const Owner& owner) const;
  void note_seen(meta::InodeNumber series);

  const Clock::duration interval_;
  std::map<uint32_t, Owner> owners_;
  std::unordered_map<meta::InodeNumber, uint32_t> owner_of_;
  std::unordered_set<meta::InodeNumber> unseen_;  // in this round over all series
  uint32_t last_ = 0;                             // whose turn it was
  uint64_t rounds_ = 0;
};

}  // namespace ckptfs::fs

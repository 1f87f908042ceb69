// The rule `set_aside`: a step of the series that is incomplete and abandoned is renamed to incomplete-TAG before it is
// found under its name again. So a trainer that is restarted right after a crash does not resume from it.
//
//   - *Abandoned*: nothing of it is open, or mapped for writing, and all processes that wrote to it have ended. Who
//     they are the ledger knows (fs/steps/step_writers.h). Where only commands wrote to it (mkdir, cp: processes that
//     had just begun), the next one may be about to follow. So such a step is abandoned once nothing has had it open
//     for twice the quiet time.
//   - *Incomplete*: by its own files, and by those of its siblings (meta/formats/completeness.h). A step whose kind
//     cannot be told is left alone.
//   - *Before it is found*: a lookup of the step and a listing of the series wait, if they are those of the step's
//     owner. Any other user's are answered at once, so that nobody waits for another user's step. Rotation's rounds do
//     it for steps that nobody asks for.
//
// Steps that have a writer or may still be incomplete are *unfinished*, and are kept in memory. The kernel does not
// cache their names, so each lookup comes to us. Such a lookup asks whether the writers have ended, and nothing else.
// Only if they have, the step is inspected, on a lane of the user, and the request is answered from there. A step is
// inspected by one thread at a time: who comes meanwhile is answered by that thread.
//
// A process that was killed may have files open for a moment after its end, until their RELEASEs come. So the first
// inspection waits for them, for half a second at most.
//
// Left alone, as the log says: what meta/steps/protection.h protects, and a step of one of whose writers nobody can
// tell whether it has ended. Of one user at most kMostOfOwner steps are kept in mind; others are left alone.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fs/base/user_lanes.h"
#include "fs/kernel/notifications.h"
#include "fs/steps/abandonment.h"
#include "fs/steps/step_writers.h"
#include "io/mutex.h"
#include "meta/steps/ledger.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class SetAside {
 public:
  static constexpr size_t kMostOfOwner = 1024;

  // `quiet`: the quiet time.
  SetAside(meta::Store& store, Abandonment& abandonment, StepWriters& writers, Notifications& notifications,
           UserLanes& lanes, std::chrono::seconds quiet)
      : store_(store),
        tree_(store.tree()),
        abandonment_(abandonment),
        writers_(writers),
        notifications_(notifications),
        lanes_(lanes),
        quiet_(quiet),
        here_(meta::process_place()) {}

  // Reads the rules of all series. Before the first request; without it no series has the rule.
  Result<> start();
  void stop() {
    stopping_ = true;
    abandonment_.stop();
  }
  // To be called when the rules of a series have changed.
  Result<> read_rule(meta::InodeNumber series, bool at_start = false);

  bool watches_any() const { return watches_; }

  // Somebody writes to a step of a series.
  void note(const StepWriters::Written& written);
  // The inode is gone.
  void forget(meta::InodeNumber inode);
  // The step was found complete, and is durable. Until then a power cut could take of it what is there now.
  void note_complete(meta::InodeNumber step);

  // --- who asks
  bool is_unfinished(meta::InodeNumber step) const;
  // Those of `inodes` that are unfinished steps of that user whose writers have ended.
  std::vector<meta::InodeNumber> find_abandoned(std::span<const meta::InodeNumber> inodes, uint32_t user);
  // Sets these steps aside, or finds why not. Then calls `then`, from another thread as a rule.
  void settle(const std::vector<meta::InodeNumber>& steps, uint32_t user, const std::function<void()>& then);
  // Looks at all unfinished steps, on the caller's thread.
  void settle_all();

  uint64_t count() const { return count_; }  // steps that were set aside since the mount

 private:
  using Clock = std::chrono::steady_clock;
  struct Unfinished {
    uint32_t owner = 0;
    std::vector<meta::StepWriter> writers;
    Clock::time_point written = Clock::now();  // when somebody began to write last, or the mount began
    std::optional<Clock::time_point> ended;    // when it was inspected first, since its writers had ended
    bool held = false;                         // something protects it: only rotation's rounds look again
    bool complete = false;                     // it is, as long as nobody else writes to it
    bool busy = false;                         // it is being inspected
    std::vector<std::function<void()>> waiting{};
    std::string told{};  // why it is left alone, as the log has it
  };
  enum class Outcome { forget, hold, complete, ask_again };

  bool is_watched(meta::InodeNumber series) const;
  Unfinished* find_or_add(meta::InodeNumber step, uint32_t owner) REQUIRES(mutex_);
  // Not while it is inspected.
  void erase(meta::InodeNumber step) REQUIRES(mutex_);
  Result<> read_steps(meta::InodeNumber series, bool at_start);
  bool may_go_on(const Unfinished& known) const REQUIRES(mutex_);
  // None: it is not unfinished.
  std::optional<std::vector<meta::StepWriter>> writers_of(meta::InodeNumber step) const;
  // False: it is not unfinished, and `otherwise` was called; or it is being inspected, and `otherwise` is called then.
  bool begin_inspection(meta::InodeNumber step, const std::function<void()>& otherwise);
  Outcome inspect(meta::InodeNumber step, bool patient);
  Result<Outcome> try_inspect(meta::InodeNumber step, bool patient);
  Result<std::optional<Outcome>> find_objection(meta::InodeNumber series, meta::InodeNumber step,
                                                const std::string& tag, bool patient);
  Result<bool> wait_until_closed(meta::InodeNumber step, bool patient);
  Clock::time_point first_inspected(meta::InodeNumber step);
  void leave_alone(meta::InodeNumber step, const std::string& why);
  bool inspect_patiently(meta::InodeNumber step);
  void end_inspection(meta::InodeNumber step, Outcome outcome);

  meta::Store& store_;
  meta::Tree& tree_;
  Abandonment& abandonment_;
  StepWriters& writers_;
  Notifications& notifications_;
  UserLanes& lanes_;
  const std::chrono::seconds quiet_;
  const std::string here_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> watches_{false};  // any series
  std::atomic<uint64_t> count_{0};
  mutable io::Mutex mutex_;
  std::unordered_set<meta::InodeNumber> series_ GUARDED_BY(mutex_);  // with the rule
  std::unordered_map<meta::InodeNumber, Unfinished> unfinished_ GUARDED_BY(mutex_);
  std::unordered_map<uint32_t, size_t> of_owner_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs

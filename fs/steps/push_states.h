// How far each step of a series with a remote has come on its way there: for rotation, `ls`, the xattrs
// user.ckptfs.remote.*, and metrics. Who pushes (fs/remote/series_pusher.h) writes it, others read it. Kept in memory:
// after a start every step counts as not pushed until it was compared with what the remote has.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/digest.h"
#include "io/mutex.h"
#include "meta/types.h"

namespace ckptfs::fs {

struct PushState {
  enum class Stage {  // their names: push_states.cc
    unpushed,         // nothing was done yet, or the step has changed since
    pushing,          // its files are on their way
    waiting,          // its files are there; its part waits for slot 0's, or the commit for other slots
    committed,        // `name` is what the step is called there
    refused,          // it cannot be pushed or committed as it is; `error` tells why
    not_kept,         // it is not pushed, since the remote's rules would not keep it; `waits_for` tells which
    removed,          // it was removed there, and is not pushed again; `waits_for` tells by whom
  };
  // Is there nothing to do before the step changes, or the rules, or somebody asks?
  bool is_settled() const { return stage == Stage::committed || stage == Stage::not_kept || stage == Stage::removed; }
  Stage stage = Stage::unpushed;
  std::string tag;
  std::string name;                // of the commit
  std::vector<uint32_t> missing;   // slots that are waited for
  std::string waits_for;           // in words
  std::string error;               // what stands in the way, in words; empty: nothing
  uint64_t bytes = 0;              // of the step here
  uint64_t sent = 0;               // of them, by this push
  uint64_t copied = 0;             // of them, that are there already
  std::vector<std::string> notes;  // what the commit left out
  io::Digest fingerprint{};        // of the step as it was looked at (StepStatus)
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();  // when it was not pushed first

  // "pushing 45%", "waiting for slots 1, 2", "committed global_step5~2"
  std::string text() const;
};
const char* name_of(PushState::Stage stage);  // "pushing"

class PushStates {
 public:
  // `slots`: of the remote.
  void add_series(meta::InodeNumber series, uint32_t slots);
  void remove_series(meta::InodeNumber series);
  bool has_remote(meta::InodeNumber series) const { return slots_of(series) != 0; }
  // Does a step of the series lie on several machines?
  bool has_slots(meta::InodeNumber series) const { return slots_of(series) > 1; }

  // None: the step is of no series with a remote, or nobody has looked at it yet.
  std::optional<PushState> of(meta::InodeNumber step) const;
  void set(meta::InodeNumber series, meta::InodeNumber step, PushState state);
  // All steps of a series that are known.
  std::vector<std::pair<meta::InodeNumber, PushState>> all(meta::InodeNumber series) const;
  void forget(meta::InodeNumber step);

  // Is the step, as it is now, in a series with a remote, and to be pushed?
  bool is_unpushed(meta::InodeNumber series, meta::InodeNumber step, const io::Digest& fingerprint) const;

 private:
  uint32_t slots_of(meta::InodeNumber series) const;

  struct Known {
    meta::InodeNumber series = 0;
    PushState state;
  };
  mutable io::Mutex mutex_;
  std::unordered_map<meta::InodeNumber, uint32_t> series_ GUARDED_BY(mutex_);  // and its slots
  std::unordered_map<meta::InodeNumber, Known> steps_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs

// Carries out a remote's rules, and deletes what no step needs any more. Anybody may do it, from any machine, several
// at a time, and be killed at any moment: all of it can be done again, nothing is locked.
//
//   1. Steps that no rule keeps get a tombstone. The newest commit never does.
//   2. A push that has no part, and of which nothing has come for a week, is ended: an object takes its part's name. A
//      part that stayed undecided for a week is ended by a void that names it, at the number that is undecided.
//   3. What is *dead* is known for good: a part whose commit has a tombstone (a part is in one commit at most), a part
//      that a void names, a push that was ended. A day after its death, its packs are garbage, but for those that a
//      part uses that is not dead; so is the part itself. What took the place of a part stays for ever, since its
//      pusher may have been stopped for weeks; commits, voids and tombstones stay, too.
//   4. Garbage is deleted if an earlier look, at least a day ago, took it for garbage, too (look.h).
//
// Why a chunk that a standing commit names is never deleted: a pusher borrows only from commits that stand, and from
// its own pushes that were not ended. It looks again whether that still holds after its part was put, and before its
// slot votes. So a part that borrows from what is dead was either put before the death, and both looks have seen it, or
// it is never voted for. And a part that was ended is never voted for (election.h). It does not matter how long anybody
// is stopped between two requests. Clocks only decide when something happens.
//
// It stops, and changes nothing, if something is not listed that was there at the last look, or that this machine
// remembers: a list is not whole, or the store was restored from an older copy. What it cannot read it leaves alone.
// Ages are told by the store's clock, also what time it is now. Thread safety: one call for a store at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/look.h"
#include "meta/remote/remote_rules.h"

namespace ckptfs::meta::remote {

// The day that is spoken of here. The fault point "remote_day" gives tests a shorter one, in seconds.
std::chrono::seconds a_day();

struct CollectorProgress {
  const char* what = "";  // "looking", "deleting"
  uint64_t objects = 0;   // that it has seen, or deleted
};

struct CollectorSettings {
  std::string host;
  // So long a step that was removed can be read. Two looks are at least so long apart.
  std::chrono::seconds grace = a_day();
  std::chrono::seconds unfinished = 7 * a_day();  // after so long without news a push, or a part, is ended
  std::chrono::milliseconds time{120'000};        // for each request
  unsigned parallel = 8;                          // requests at a time
  bool dry_run = false;                           // nothing is written there; ages are told by our clock
  bool restored = false;                          // what was seen before does not count: look.h
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const CollectorProgress&)> progress = [](const auto&) {};  // from any thread
  std::function<std::string()> id = new_id;
};

struct CollectorReport {
  struct Removed {
    CommittedStep step;
    std::string why;
  };
  struct Amount {
    uint64_t objects = 0, bytes = 0;
  };
  std::chrono::system_clock::time_point now;  // by the store's clock
  uint64_t objects = 0, bytes = 0;            // that were listed
  std::vector<Removed> removed;               // in a dry run: would be
  std::vector<PushName> ended;                // likewise
  Amount deleted;                             // likewise
  Amount garbage;                             // that goes later: when an earlier look has seen it, too
  uint64_t swept = 0;                         // ObjectStore::sweep()
  std::vector<std::string> warnings;          // in words: what is missing there, or does not belong there
};

// `memory`: what this machine has seen, nothing for none; is set to what it has seen now. It is what tells that a store
// was rolled back. EIO, in words: see above. EBADMSG, naming it: a part or a decision there is damaged, and nobody can
// tell what it needs.
Result<CollectorReport> collect(io::ObjectStore& store, const CollectorSettings& settings, std::optional<Look>& memory);

}  // namespace ckptfs::meta::remote

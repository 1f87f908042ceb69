// Carries out a remote's rules, and deletes what no step needs any more. Anybody may do it, from any machine, several
// at a time, and be killed at any moment: all of it can be done again, nothing is locked.
//
//   1. Steps that no rule keeps get a tombstone. The newest commit never does. A step that lacks files in the list does
//      not count, and is not removed: something is wrong, and nobody knows what.
//   2. A push that has no part, and of which nothing has come for a week, is ended: an object takes its part's name. A
//      save that stayed undecided for a week gets a void. If the parts of all slots are there and whole, as after the
//      death of all mounts, it gets its commit instead.
//   3. What is *dead* is known for good: the parts of a commit that has a tombstone, the parts of a decided save that
//      its commit does not name, a push that was ended. A day after its death its files and its part are deleted. In
//      the place of a part that no commit named remains what says that its push was ended; commits, voids and
//      tombstones stay, too. So what arrives late, of a request that was on its way for weeks, is known as dead.
//
// Why a file that a standing commit names is never deleted: each push has a folder of its own, no other push uses what
// is in it. A part goes with one save, for ever (decide.h), and that save has one decision. So only that decision, its
// tombstone, or an object in the part's place lets the files go. So what a list lacks, or a store that was restored
// from an older copy has no more, deletes nothing: it can only make less go. Clocks only decide when something happens.
//
// What it cannot read it leaves alone. Ages are told by the store's clock, also what time it is now. Thread safety: one
// call for a store at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/host.h"
#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"
#include "meta/remote/remote_rules.h"
#include "meta/remote/server_time.h"

namespace ckptfs::meta::remote {

struct CollectorProgress {
  const char* what = "";  // "looking", "deleting"
  uint64_t objects = 0;   // that it has seen, or deleted
};

struct CollectorSettings {
  std::string host;
  std::string folder = io::temporary_folder();  // of nameless files
  // So long a step that was removed can be read.
  std::chrono::seconds grace = a_day();
  std::chrono::seconds unfinished = 7 * a_day();  // after so long without news a push, or a part, is ended
  std::chrono::milliseconds time{120'000};        // for each request
  unsigned parallel = 8;                          // requests at a time
  bool dry_run = false;                           // nothing is written there; ages are told by our clock
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
  std::vector<PushName> ended;                // likewise; of a void the push of slot 0
  std::vector<DecisionName> committed;        // whose parts were all there
  Amount deleted;                             // likewise
  Amount waiting;                             // of what has been dead for less than a day
  uint64_t uploads = 0;                       // that were ended: ObjectStore::end_uploads()
  std::vector<std::string> warnings;          // in words: what is missing there, or does not belong there
};

// EIO, in words, which can pass: a list is not whole. EBADMSG, naming it: a decision there is damaged.
Result<CollectorReport> collect(io::ObjectStore& store, const CollectorSettings& settings);

struct LastCollection {
  std::chrono::system_clock::time_point when;  // by the store's clock
  std::string host;
};
// None: nobody has run it yet.
Result<std::optional<LastCollection>> last_collection(io::ObjectStore& store, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote

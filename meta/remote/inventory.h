// What lies in a remote, by one list of all its objects: as many requests as that list has pages. The objects are
// counted by push and by tag, 8 bytes for each pack, so that a million of them take some tens of MiB. Times are the
// store's. Stateless; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

struct ListedPack {
  uint32_t pack = 0;
  uint32_t bytes = 0;
};

// What is listed of one push.
struct PushObjects {
  using Time = std::chrono::system_clock::time_point;
  std::vector<ListedPack> packs;  // ascending
  Time newest_pack;
  bool has_part = false;  // else what has the part's name, if anything does, says that the push was ended
  bool is_ended = false;
  Time changed;             // of the part, or of what says that it was ended
  uint64_t part_bytes = 0;  // of either
};

struct Inventory {
  using Time = std::chrono::system_clock::time_point;
  DecisionsByTag decisions;
  std::vector<CommittedStep> steps;  // as list_steps() returns them
  std::map<PushName, PushObjects> pushes;
  std::map<DecisionName, std::vector<uint32_t>> votes;  // the slots that voted
  std::map<uint64_t, Time> looks;
  std::map<std::string, Time> probes;  // what probe_store() left
  uint64_t objects = 0, bytes = 0;
  // Somebody else's: nobody touches them. The first hundred keys, and how many there are.
  std::vector<std::string> foreign;
  uint64_t foreign_count = 0;
};

// `progress`: called with the number of objects, from this thread. EIO, in words, which can pass: the list is not
// whole.
Result<Inventory> take_inventory(io::ObjectStore& store, const std::function<void(uint64_t objects)>& progress,
                                 const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote

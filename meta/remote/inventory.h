// What lies in a remote, by one list of all its objects: as many requests as that list has pages. Files are counted by
// their folders. Times are the store's. Stateless; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

// What is listed of one push, but its files.
struct ListedPush {
  using Time = std::chrono::system_clock::time_point;
  std::optional<Time> begun;  // when it last said that it goes on (push_key())
  bool has_part = false;      // else what has the part's name, if anything does, says that the push was ended
  bool is_ended = false;
  Time changed;             // of the part, or of what says that it was ended
  uint64_t part_bytes = 0;  // of either
};

// The files below a push's folder.
struct ListedFiles {
  std::chrono::system_clock::time_point newest;
  uint64_t objects = 0, bytes = 0;
};

struct Inventory {
  using Time = std::chrono::system_clock::time_point;
  Decisions decisions;
  std::vector<CommittedStep> steps;  // as list_steps() returns them
  std::map<PushName, ListedPush> pushes;
  std::map<std::string, ListedFiles, std::less<>> folders;  // by PushName::folder()
  std::map<std::string, Time> probes;                       // what probe_store() left
  uint64_t objects = 0, bytes = 0;
  // Somebody else's: nobody touches them. The first hundred keys, and how many there are.
  std::vector<std::string> foreign;
  uint64_t foreign_count = 0;

  ListedFiles files_of(const PushName& push) const;
};

// `progress`: called with the number of objects, from this thread. EIO, in words, which can pass: the list is not
// whole.
Result<Inventory> take_inventory(io::ObjectStore& store, const std::function<void(uint64_t objects)>& progress,
                                 const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote

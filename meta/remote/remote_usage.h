// What the steps of a remote cost there. Each step is whole by itself: its removal gives back all that it takes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"

namespace ckptfs::meta::remote {

struct StepUsage {
  CommittedStep step;
  uint64_t objects = 0;  // files of all its slots
  uint64_t bytes = 0;    // of them
};

struct RemoteUsage {
  std::vector<StepUsage> steps;  // those that stand, as list_steps() returns them
  uint64_t objects = 0;          // all that lie there
  uint64_t bytes = 0;            // of them
  uint64_t needed = 0;           // bytes of files of standing steps
  uint64_t needless = 0;         // of other pushes: on their way, or removed
};

struct UsageSettings {
  std::chrono::milliseconds time{120'000};  // for each request
  unsigned parallel = 8;                    // requests at a time
  const std::atomic<bool>* stop = nullptr;
  std::function<void(uint64_t objects)> progress = [](auto) {};  // that were listed
};

// One list of all objects, and one get for each standing step. EBADMSG, naming it: a commit is damaged.
Result<RemoteUsage> measure_usage(io::ObjectStore& store, const UsageSettings& settings);

}  // namespace ckptfs::meta::remote

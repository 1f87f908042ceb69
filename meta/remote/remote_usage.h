// What the steps of a remote cost there. A pack counts as a whole: it stays as long as one chunk of it is needed.
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
  uint64_t files = 0;   // bytes of the files that its slots hold
  uint64_t alone = 0;   // bytes of packs that no other standing step uses: what its removal gives back
  uint64_t shared = 0;  // bytes of packs that others use, too
};

struct RemoteUsage {
  std::vector<StepUsage> steps;  // those that stand, as list_steps() returns them
  uint64_t objects = 0;          // all that lie there
  uint64_t bytes = 0;            // of them
  uint64_t needed = 0;           // bytes of packs that a standing step uses, each once
  uint64_t needless = 0;         // of the other packs: on their way, or garbage
};

struct UsageSettings {
  std::chrono::milliseconds time{120'000};  // for each request
  unsigned parallel = 8;                    // requests at a time
  const std::atomic<bool>* stop = nullptr;
  std::function<void(uint64_t objects)> progress = [](auto) {};  // that were listed
};

// One list of all objects, and one or two gets for each slot of each standing step. EBADMSG, naming it: a commit or a
// part is damaged.
Result<RemoteUsage> measure_usage(io::ObjectStore& store, const UsageSettings& settings);

}  // namespace ckptfs::meta::remote

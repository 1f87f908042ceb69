// Runs the pushes and elections of several mounts against a store in memory, one request at a time, in an order that a
// seed decides. Each mount is a thread, but only the one that has the turn runs. It gives the turn on before each
// request, and whoever passes it on lets the world act first: files change, processes die or stop, requests fail.
//
// After each change of the store the invariants are checked:
//   - no object changes
//   - a commit names whole parts, whose chunks are all there with the right digests, as long as the commit stands
//   - its parts hold one attempt, and at one moment all of their mounts held exactly that
//   - a part borrows from commits, or from a push that has no part
// When the changes end, the last attempt is committed.
#pragma once

#include <cstdint>
#include <string>

namespace ckptfs::meta::remote::testing {

struct SimulationPlan {
  uint64_t seed = 1;
  std::string folder;  // of journals and nameless files
};

struct SimulationResult {
  std::string broken;  // what was not right; empty: nothing
  uint64_t requests = 0;
  uint64_t commits = 0;
  uint64_t voids = 0;
};

// The same plan has the same result.
SimulationResult simulate(const SimulationPlan& plan);

}  // namespace ckptfs::meta::remote::testing

// A reader of a simulation: it opens steps that stand, and reads them slowly.
#pragma once

#include <string>

#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/remote_step.h"
#include "tests/meta/remote/simulated_store.h"
#include "tests/meta/remote/simulation_world.h"

namespace ckptfs::meta::remote::testing {

class SimulatedReader : public Actor {
 public:
  SimulatedReader(World& world, std::string name) : Actor(world, std::move(name)), store_(world, *this) {}
  void live() override;

 private:
  Result<> read_one();
  Result<> read_step(const CommittedStep& step);
  Result<> read_file(const RemoteStep& step, const UnionEntry& file);
  // Fails the run, unless there is an excuse.
  void judge(const CommittedStep& step, const Error& error);

  SimulatedStore store_;
};

}  // namespace ckptfs::meta::remote::testing

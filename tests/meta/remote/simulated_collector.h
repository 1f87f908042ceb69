// Who tidies up in a simulation: collectors, which look about daily, and an operator, who changes rules and removes
// steps by hand.
#pragma once

#include <string>

#include "io/result.h"
#include "meta/remote/collector.h"
#include "tests/meta/remote/simulated_store.h"
#include "tests/meta/remote/simulation_world.h"

namespace ckptfs::meta::remote::testing {

class SimulatedCollector : public Actor {
 public:
  SimulatedCollector(World& world, std::string name);
  void live() override;

 private:
  void run();

  SimulatedStore store_;
  CollectorSettings settings_;
  bool failed_ = false;  // the last run of the last phase failed
};

class Operator : public Actor {
 public:
  Operator(World& world, std::string name) : Actor(world, std::move(name)), store_(world, *this) {}
  void live() override;

 private:
  Result<> change_rules_once();
  Result<> pin_once();
  Result<> remove_once();

  SimulatedStore store_;
};

}  // namespace ckptfs::meta::remote::testing

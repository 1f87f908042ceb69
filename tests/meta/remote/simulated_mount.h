// A mount of a simulation: a process that pushes the steps of its disk.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "io/result.h"
#include "meta/remote/decide.h"
#include "meta/remote/push.h"
#include "tests/meta/remote/simulated_disk.h"
#include "tests/meta/remote/simulated_store.h"
#include "tests/meta/remote/simulation_world.h"

namespace ckptfs::meta::remote::testing {

class SimulatedMount : public Actor {
 public:
  // `term`: in which it owns its slot.
  SimulatedMount(World& world, std::string name, const Slot& slot, uint32_t term);
  void live() override;
  const Slot& slot() const { return slot_; }

  std::map<std::string, DiskStep> disk;  // by tag. It outlives the process

 private:
  // What the process remembers of a step.
  struct Work {
    std::unique_ptr<StepImage> image;
    std::optional<PushJournal> journal;
    std::optional<PushedPart> pushed;
    KnownParts known;
    DecisionMemory memory;
  };

  // Returns whether the step is committed as it is here.
  Result<bool> work(const std::string& tag, const DiskStep& step, Work& work);
  Result<bool> is_removed(Work& work);
  Result<> push(const std::string& tag, Work& work);

  const Slot slot_;
  const uint32_t term_;
  const std::chrono::seconds ahead_;  // of its clock
  SimulatedStore store_;
  PushSettings settings_;
};

}  // namespace ckptfs::meta::remote::testing

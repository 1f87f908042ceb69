// The training of a simulation: it saves steps on the disks of all mounts, again and again. Each save is of a new run,
// with a process on each mount. All of them begin before any of them writes, and write half of their files before any
// of them writes the others. In half of the simulations they agree on a name for the save.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/meta/remote/simulated_mount.h"
#include "tests/meta/remote/simulation_world.h"

namespace ckptfs::meta::remote::testing {

class Trainer {
 public:
  Trainer(World& world, std::vector<SimulatedMount*> mounts);
  // A save goes a bit further, or a new one begins.
  void save_on();
  // The save that has begun ends. Then each step is saved once more, by a run that takes its time.
  void finish();
  // Something is opened for writing, and closed.
  void touch();

 private:
  bool is_saving() const { return !to_begin_.empty() || !to_write_.empty() || !to_end_.empty(); }
  void begin(const std::string& tag);
  void write_on(SimulatedMount& mount, bool half);

  World& world_;
  const std::vector<SimulatedMount*> mounts_;
  const bool named_attempts_, tags_differ_;
  const uint64_t tags_;
  std::string tag_;
  uint64_t attempt_ = 0;
  std::vector<SimulatedMount*> to_begin_, to_write_, to_end_;
  std::map<const SimulatedMount*, uint64_t> began_;
};

}  // namespace ckptfs::meta::remote::testing

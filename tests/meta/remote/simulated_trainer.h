// The training of a simulation: it saves steps on the disks of all mounts, again and again. Each mount has a process of
// it. All of them begin before any of them writes.
#pragma once

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
  // The save that has begun ends, and there is one at least.
  void finish();
  // Something is opened for writing, and closed.
  void touch();

 private:
  bool is_saving() const { return !to_begin_.empty() || !to_write_.empty(); }
  void write_on(SimulatedMount& mount);

  World& world_;
  const std::vector<SimulatedMount*> mounts_;
  const bool named_attempts_, tags_differ_;
  const uint64_t tags_;
  std::string tag_;
  uint64_t attempt_ = 0;
  std::vector<SimulatedMount*> to_begin_, to_write_;
  bool half_written_ = false;
};

}  // namespace ckptfs::meta::remote::testing

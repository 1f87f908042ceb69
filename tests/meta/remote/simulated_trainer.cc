#include "tests/meta/remote/simulated_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ckptfs::meta::remote::testing {

Trainer::Trainer(World& world, std::vector<SimulatedMount*> mounts)
    : world_(world),
      mounts_(std::move(mounts)),
      named_attempts_(world.roll(2) == 0),
      tags_differ_(world.roll(2) == 0),
      tags_(1 + world.roll(3)) {}

void Trainer::save_on() {
  if (!is_saving()) {
    tag_ = fmt::format("step_{}", 1 + world_.roll(tags_));
    ++attempt_;
    to_write_ = mounts_;
    std::ranges::shuffle(to_write_, world_.dice());
    to_begin_ = to_write_;
    std::ranges::shuffle(to_begin_, world_.dice());
  }
  if (!to_begin_.empty()) {
    const auto step = to_begin_.back()->disk.find(tag_);
    if (step != to_begin_.back()->disk.end()) step->second.outlived = true;
    to_begin_.pop_back();
    return;
  }
  write_on(*to_write_.back());
  half_written_ = !half_written_;
  if (!half_written_) to_write_.pop_back();
}

// Writes the first file, or all.
void Trainer::write_on(SimulatedMount& mount) {
  DiskStep& step = mount.disk[tag_];
  step.attempt = named_attempts_ ? fmt::format("attempt-{}", attempt_) : "";
  if (named_attempts_) step.files["attempt.txt"] = step.attempt;
  step.files["empty"] = "";
  step.quiet = half_written_;
  ++step.version;
  if (half_written_) {
    step.outlived = false;
    const std::string whose = mount.name() + (tags_differ_ ? " of " + tag_ : "");
    step.files[fmt::format("frozen-{}.bin", mount.name())] = "frozen " + whose;
    for (const char* const file : {"state", "weights"}) {
      step.files[fmt::format("{}-{}.bin", file, mount.name())] = fmt::format("{} {} {}", file, world_.roll(2), whose);
    }
  }
  world_.checks().note_state(mount.slot().mount, tag_, half_written_ ? attempt_ : 0, step.files);
  world_.note(&mount, [&] {
    return fmt::format("attempt {} of {} is {}", attempt_, tag_, half_written_ ? "written" : "half written");
  });
}

void Trainer::finish() {
  if (attempt_ == 0) save_on();
  while (is_saving()) save_on();
}

void Trainer::touch() {
  auto& disk = mounts_[world_.roll(mounts_.size())]->disk;
  if (!disk.empty()) ++disk.begin()->second.version;
}

}  // namespace ckptfs::meta::remote::testing

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

void Trainer::begin(const std::string& tag) {
  tag_ = tag;
  ++attempt_;
  for (auto* const mounts : {&to_begin_, &to_write_, &to_end_}) {
    *mounts = mounts_;
    std::ranges::shuffle(*mounts, world_.dice());
  }
}

void Trainer::save_on() {
  if (!is_saving()) begin(fmt::format("step_{}", 1 + world_.roll(tags_)));
  if (!to_begin_.empty()) {
    began_[to_begin_.back()] = world_.now();
    to_begin_.pop_back();
  } else if (!to_write_.empty()) {
    write_on(*to_write_.back(), true);
    to_write_.pop_back();
  } else {
    write_on(*to_end_.back(), false);
    to_end_.pop_back();
  }
}

// Writes the first file, or all.
void Trainer::write_on(SimulatedMount& mount, bool half) {
  DiskStep& step = mount.disk[tag_];
  step.attempt = named_attempts_ ? fmt::format("attempt-{}", attempt_) : "";
  if (named_attempts_) step.files["attempt.txt"] = step.attempt;
  step.files["empty"] = "";
  step.quiet = !half;
  ++step.version;
  (half ? step.first : step.last) = world_.now();
  if (!half) {
    step.order = attempt_;
    step.began = began_.at(&mount);
    const std::string whose = mount.name() + (tags_differ_ ? " of " + tag_ : "");
    step.files[fmt::format("frozen-{}.bin", mount.name())] = "frozen " + whose;
    for (const char* const file : {"state", "weights"}) {
      step.files[fmt::format("{}-{}.bin", file, mount.name())] = fmt::format("{} {} {}", file, world_.roll(2), whose);
    }
  }
  world_.checks().note_state(mount.slot().mount, tag_, half ? 0 : attempt_, step.files);
  world_.note(&mount,
              [&] { return fmt::format("attempt {} of {} is {}", attempt_, tag_, half ? "half written" : "written"); });
}

void Trainer::finish() {
  if (attempt_ == 0) save_on();
  while (is_saving()) save_on();
  const std::map<std::string, DiskStep> steps = mounts_.front()->disk;
  for (const auto& [tag, step] : steps) {
    begin(tag);
    while (!to_begin_.empty()) save_on();
    world_.pass_time(kDay);
    while (is_saving()) save_on();
  }
}

void Trainer::touch() {
  auto& disk = mounts_[world_.roll(mounts_.size())]->disk;
  if (!disk.empty()) ++disk.begin()->second.version;
}

}  // namespace ckptfs::meta::remote::testing

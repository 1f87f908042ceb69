#include "tests/meta/remote/simulated_collector.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "meta/remote/remote_rules.h"
#include "meta/remote/tombstone.h"

namespace ckptfs::meta::remote::testing {
namespace {

const io::RequestLimits kRequest;
constexpr uint64_t kLongestKept = 5;  // days, of keep_for

}  // namespace

SimulatedCollector::SimulatedCollector(World& world, std::string name)
    : Actor(world, std::move(name)), store_(world, *this) {
  settings_.host = this->name();
  settings_.folder = world.folder();
  settings_.parallel = 1;
  settings_.id = [this] { return world_.roll_id(); };
}

void SimulatedCollector::live() {
  settled = true;
  while (!must_end()) {
    run();
    world_.sleep(*this, world_.is_last() ? 2 * kDay : kDay / 2 + world_.roll(kDay));
  }
}

void SimulatedCollector::run() {
  began = world_.now();
  met_hazard = met_short_list = false;
  const auto report = collect(store_, settings_);
  if (must_end()) return;
  world_.note(this, [&] {
    return report ? fmt::format("has run: {} removed, {} ended, {} deleted, {} later", report.value().removed.size(),
                                report.value().ended.size(), report.value().deleted.objects,
                                report.value().waiting.objects)
                  : "has not run: " + report.error().message();
  });
  if (report) {
    ++world_.result().collections;
    if (!report.value().warnings.empty() && world_.is_calm() && !met_short_list) {
      world_.fail(report.value().warnings.front());
    }
  } else if (world_.is_last() && failed_) {
    world_.fail("the collector fails twice in a row: " + report.error().message());
  }
  failed_ = !report && world_.is_last();  // one failure may be what another collector has deleted meanwhile
}

void Operator::live() {
  settled = true;
  while (!must_end()) {
    world_.sleep(*this, kDay / 2 + world_.roll(3 * kDay));
    if (must_end() || world_.is_calm()) continue;
    began = world_.now();
    met_hazard = met_short_list = false;
    const uint64_t what = world_.roll(4);
    std::ignore = what == 0 ? pin_once() : what == 1 ? change_rules_once() : remove_once();
  }
}

// One rule is set, or taken away.
Result<> Operator::change_rules_once() {
  const uint64_t which = world_.roll(3), value = world_.roll(4);
  const auto change = [&](RemoteRules& rules) -> Result<> {
    const std::string text = value == 0 ? "" : std::to_string(value);
    if (which == 0) return set_rule(rules, "keep_last", text);
    if (which == 1) return set_rule(rules, "keep_every", text);
    return set_rule(rules, "keep_for", value == 0 ? "" : fmt::format("{}d", 1 + world_.roll(kLongestKept)));
  };
  TRY(change_rules(store_, name(), change, kRequest));
  return success();
}

Result<> Operator::pin_once() {
  TRY_ASSIGN(const auto steps, list_steps(store_, kRequest));
  if (steps.empty()) return success();
  const std::string step = steps[world_.roll(steps.size())].decision.text();
  const auto change = [&](RemoteRules& rules) -> Result<> {
    if (!rules.pins.erase(step)) rules.pins.insert(step);
    return success();
  };
  TRY(change_rules(store_, name(), change, kRequest));
  return success();
}

// As `ckptfs remote rm` does: any step but the newest one.
Result<> Operator::remove_once() {
  TRY_ASSIGN(auto steps, list_steps(store_, kRequest));
  std::erase_if(steps, [](const CommittedStep& step) { return step.gone; });
  if (steps.size() < 2) return success();
  return remove_step(store_, steps[world_.roll(steps.size() - 1)], name(), "by hand", kRequest);
}

}  // namespace ckptfs::meta::remote::testing

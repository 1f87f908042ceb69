// ckptfs wait: until a step of a series is complete.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/step_states.h"
#include "fs/cli/system.h"
#include "io/duration.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenLooks{500};
constexpr std::chrono::seconds kLongestBetweenLooks{10};
constexpr int kBetweenLooksFactor = 20;  // of what a look takes: thousands of steps are not looked at all the time
constexpr const char* kNext = "next";

struct WaitArguments {
  std::string series;
  std::string awaited;
  std::string timeout;
  bool as_json = false;
};

// When each step that is whole completed, by its tag. A save of the same tag again has another time.
using Completed = std::map<std::string, int64_t>;

Completed completed_in(const json& steps) {
  Completed found;
  for (const json& step : steps) {
    if (is_whole(step)) found[step.value("tag", "")] = step.value("completed", int64_t{0});
  }
  return found;
}

const json* find_awaited(const json& steps, const std::string& awaited, const Completed& before) {
  const json* found = nullptr;
  for (const json& step : steps) {
    const std::string tag = step.value("tag", "");
    // Another user's step is not waited for: its files may do anything to who loads them.
    if (!is_whole(step) || !step.value("trusted", false) || (awaited != kNext && tag != awaited)) continue;
    const auto known = before.find(tag);
    const bool is_new = known == before.end() || known->second != step.value("completed", int64_t{0});
    if (awaited != kNext || is_new) found = &step;
  }
  return found;
}

// Looks again and again, until `end`. What stands in the way of a look is said once.
class Looking {
 public:
  Looking(const Target& target, std::string awaited, std::optional<Clock::time_point> end)
      : target_(target), awaited_(std::move(awaited)), end_(end) {}

  Result<json> wait() {
    std::optional<Completed> before;
    while (true) {
      const auto began = Clock::now();
      const auto answer = ask_states(target_);
      if (answer) {
        const json& steps = answer.value().at("steps");
        if (!before) before = awaited_ == kNext ? completed_in(steps) : Completed();
        if (const json* const step = find_awaited(steps, awaited_, *before)) return *step;
      } else if (may_pass(answer.error())) {
        told_.tell(answer.error());
        if (!before && answer.error().errno_value() == ENOENT) before.emplace();  // what is there later is new
      } else {
        return answer.error();
      }
      const auto pause = std::clamp<Clock::duration>(kBetweenLooksFactor * (Clock::now() - began), kBetweenLooks,
                                                     kLongestBetweenLooks);
      if (end_ && Clock::now() >= *end_) return Error(ETIMEDOUT, "timed out: " + why(answer));
      const auto until = Clock::now() + pause;
      std::this_thread::sleep_until(end_ ? std::min(until, *end_) : until);
    }
  }

 private:
  std::string why(const Result<json>& answer) const {
    if (!answer) return answer.error().message();
    if (awaited_ == kNext) return "no step has completed since";
    for (const json& step : answer.value().at("steps")) {
      if (step.value("tag", "") == awaited_) return awaited_ + " is " + state_and_reason(step);
    }
    return "there is no " + awaited_;
  }

  const Target& target_;
  const std::string awaited_;
  const std::optional<Clock::time_point> end_;
  ToldOnce told_;
};

int run(const WaitArguments& arguments) {
  std::optional<Clock::time_point> end;
  if (!arguments.timeout.empty()) {
    const auto limit = io::parse_duration(arguments.timeout);
    if (!limit) {
      fail("--timeout " + arguments.timeout, limit.error());
      return kUsage;
    }
    end = Clock::now() + limit.value();
  }
  const auto target = find_target(arguments.series);
  if (!target) return fail(target.error());
  const auto step = Looking(target.value(), arguments.awaited, end).wait();
  if (!step) return fail(arguments.series, step.error());
  return print_answer(arguments.as_json, step.value(),
                      [&] { std::printf("%s\n", printable(step.value().value("tag", "")).c_str()); });
}

}  // namespace

void add_wait(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<WaitArguments>();
  CLI::App* command = app.add_subcommand("wait", "Wait until a step of a series is complete");
  command->add_option("SERIES", arguments->series, "A series, which need not be there yet")->required();
  command->add_option("--for", arguments->awaited, "The tag of the step, or next: the next one that completes")
      ->required();
  command->add_option("--timeout", arguments->timeout, "Give up after this time (s, m, h, d, w; default: never)");
  command->add_flag("--json", arguments->as_json, "Print as JSON what `state` prints");
  command->footer(
      "Prints the tag. Steps of other users, except for the series' owner, do not count. Goes on waiting while the "
      "mount is started anew. Exits with 1 after the timeout, and says what\n"
      "the step lacks.\n"
      "Example:\n  ckptfs wait /ckpt/steps --for global_step200\n"
      "  ckptfs wait /ckpt/runs/my-model --for next --timeout 2h");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

// ckptfs latest: names the step that a training goes on from.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/step_states.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct LatestArguments {
  std::string series;
  bool path = false;
  bool as_json = false;
};

// The last of the steps, which is the newest by its number, and what it lacks.
std::string why_none(const json& steps) {
  if (steps.empty()) return "there is no step yet";
  const json& last = steps.back();
  return "no step is complete; the newest, " + last.value("tag", "") + ", is " + state_and_reason(last);
}

Result<json> find_latest(const Target& target) {
  TRY_ASSIGN(const json answer, ask_states(target));
  const json& newest = answer.at("newest");
  if (newest.size() > 1) {
    std::string names;
    for (const auto& [series, tag] : newest.items()) {
      names += (names.empty() ? "" : ", ") + io::path_outside(target.mount, series);
    }
    return Error(EINVAL, "several series have steps; name one: " + names);
  }
  for (const json& step : answer.at("steps")) {
    if (step.value("tag", "") == newest.value(step.value("series", ""), "")) return step;
  }
  return Error(ENOENT, why_none(answer.at("steps")));
}

int run(const LatestArguments& arguments) {
  const auto target = find_target(arguments.series.empty() ? std::nullopt : std::optional(arguments.series));
  if (!target) return fail(target.error());
  const auto latest = find_latest(target.value());
  if (!latest) return fail(io::path_outside(target.value().mount, target.value().path), latest.error());
  if (arguments.as_json) {
    print_json(latest.value());
  } else {
    std::printf("%s\n", latest.value().value(arguments.path ? "path" : "tag", "").c_str());
  }
  return kSuccess;
}

}  // namespace

void add_latest(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<LatestArguments>();
  CLI::App* command = app.add_subcommand("latest", "Name the newest complete step of a series");
  command->add_option("SERIES", arguments->series, "A series (default: the only one of the only mount)");
  command->add_flag("--path", arguments->path, "Print the step's path, not its tag");
  command->add_flag("--json", arguments->as_json, "Print as JSON what `state` prints");
  command->footer(
      "It is the complete step that a training saved last, not one that was copied in since. If no rule is set on the\n"
      "series, nobody knows who saved; then it is the one with the highest number. Damaged steps, those of which only\n"
      "the weights are left, and those of other users, except for the series' owner, are never named.\n"
      "Exits with 1, and says why, if no step is complete.\n"
      "Example:\n  ckptfs latest /ckpt/steps\n"
      "  python train.py --resume_from_checkpoint \"$(ckptfs latest --path /ckpt/runs/my-model)\"");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

// ckptfs state: is a step complete, and if not, why?
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

struct StateArguments {
  std::string step;
  bool as_json = false;
};

Result<json> find_state(const Target& target) {
  TRY_ASSIGN(const json answer, ask_states(target));
  const std::string path = io::path_outside(target.mount, target.path);
  for (const json& step : answer.at("steps")) {
    if (step.value("path", "") == path) return step;
  }
  return Error(EINVAL, "it is no step; `ckptfs ls` lists them");
}

int run(const StateArguments& arguments) {
  const auto target = find_target(arguments.step);
  if (!target) return fail(target.error());
  const auto step = find_state(target.value());
  if (!step) return fail(arguments.step, step.error());
  if (arguments.as_json) {
    print_json(step.value());
  } else {
    std::printf("%s\n", printable(state_and_reason(step.value())).c_str());
  }
  return exit_code_of(step.value());
}

}  // namespace

void add_state(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<StateArguments>();
  CLI::App* command = app.add_subcommand("state", "Tell whether a step is complete, and if not, why");
  command->add_option("STEP", arguments->step, "A step of a series")->required();
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "Exits with 0 if the step is complete or sealed, with 3 if it is damaged, else with 1.\n"
      "Example:\n  ckptfs state /ckpt/steps/global_step100\n"
      "  ckptfs state --json /ckpt/steps/global_step100");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

// ckptfs state: is a step complete, and if not, why?
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
#include "fs/cli/step_states.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

Result<int> run_state(const Target& target, bool as_json) {
  TRY_ASSIGN(const json answer, ask_states(target));
  const std::string path = io::path_outside(target.mount, target.path);
  for (const json& step : answer.at("steps")) {
    if (step.value("path", "") != path) continue;
    print_answer(as_json, step, [&] { std::printf("%s\n", printable(state_and_reason(step)).c_str()); });
    return exit_code_of(step);
  }
  return Error(EINVAL, "it is no step; `ckptfs ls` lists them");
}

}  // namespace

void add_state(CLI::App& app, Chosen& chosen) {
  PathCommand command{"state",
                      "Tell whether a step is complete, and if not, why",
                      "STEP",
                      "A step of a series",
                      "Exits with 0 if the step is complete or sealed, with 3 if it is damaged, else with 1.\n"
                      "Example:\n  ckptfs state /ckpt/steps/global_step100\n"
                      "  ckptfs state --json /ckpt/steps/global_step100",
                      run_state};
  command.required = true;
  add_path_command(app, chosen, command);
}

}  // namespace ckptfs::fs::cli

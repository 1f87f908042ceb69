// ckptfs rm: removes steps, at once, however large they are.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/path_command.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

int run(const StepsArguments& arguments) {
  return for_each_step(arguments, "removed", [](const std::string& step) -> Result<json> {
    TRY_ASSIGN(const Target target, find_target(step));
    TRY_ASSIGN(const json result, ask_and_wait(target.mount, "removing", "rm", {{"path", target.path}}));
    return json(result.value("removed", step));
  });
}

}  // namespace

void add_rm(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<StepsArguments>();
  CLI::App* command = app.add_subcommand("rm", "Remove steps at once, however large");
  command->add_option("STEP", arguments->steps, "A step of a series")->required();
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "The step is gone, durably, when this returns; the daemon frees its space afterwards. A pinned step is refused.\n"
      "`rm -r` removes file by file. It is refused if the step is pinned and sealed.\n"
      "Example:\n  ckptfs rm /ckpt/steps/global_step100");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

// ckptfs rm: removes steps, at once, however large they are.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct RmArguments {
  std::vector<std::string> steps;
  bool as_json = false;
};

int run(const RmArguments& arguments) {
  json removed = json::array();
  int code = kSuccess;
  for (const std::string& step : arguments.steps) {
    const auto target = find_target(step);
    const auto result = target ? ask_and_wait(target.value().mount, "removing", "rm", {{"path", target.value().path}})
                               : Result<json>(target.error());
    if (result) {
      removed.push_back(result.value().value("removed", step));
    } else {
      code = fail(step, result.error());
    }
  }
  if (arguments.as_json) print_json({{"removed", removed}});
  return code;
}

}  // namespace

void add_rm(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<RmArguments>();
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

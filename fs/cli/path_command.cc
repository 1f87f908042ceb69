#include "fs/cli/path_command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

struct PathArguments {
  std::string path;
  bool as_json = false;
  bool flagged = false;
};

int run_path_command(const PathCommand& command, const PathArguments& arguments) {
  const auto target = find_target(arguments.path.empty() ? std::nullopt : std::optional(arguments.path));
  if (!target) return fail(target.error());
  const auto& run = arguments.flagged ? command.flag->run : command.run;
  const auto code = run(target.value(), arguments.as_json);
  if (!code) return fail(arguments.path.empty() ? target.value().mount.mountpoint : arguments.path, code.error());
  return code.value();
}

}  // namespace

void add_path_command(CLI::App& app, Chosen& chosen, const PathCommand& command) {
  auto arguments = std::make_shared<PathArguments>();
  CLI::App* subcommand = app.add_subcommand(command.name, command.description);
  subcommand->add_option(command.argument, arguments->path, command.about_argument)->required(command.required);
  subcommand->add_flag("--json", arguments->as_json, "Print as JSON");
  if (command.flag) subcommand->add_flag(command.flag->name, arguments->flagged, command.flag->about);
  subcommand->footer(command.footer);
  subcommand->callback([command, arguments, &chosen] {
    chosen = [command, arguments] { return run_path_command(command, *arguments); };
  });
}

int for_each_step(const StepsArguments& arguments, const char* key,
                  const std::function<Result<nlohmann::json>(const std::string& step)>& act,
                  const std::function<void(const nlohmann::json&)>& print) {
  nlohmann::json done = nlohmann::json::array();
  int code = kSuccess;
  for (const std::string& step : arguments.steps) {
    auto result = act(step);
    if (!result) {
      code = fail(step, result.error());
      continue;
    }
    if (print && !arguments.as_json) print(result.value());
    done.push_back(std::move(result).value());
  }
  if (arguments.as_json) print_json({{key, done}});
  return code;
}

}  // namespace ckptfs::fs::cli

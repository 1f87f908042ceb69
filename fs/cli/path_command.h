// Commands that take --json and one path in a mount, which may be left out, or several steps. Main thread only.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"

namespace ckptfs::fs::cli {

struct PathCommand {
  std::string name;
  std::string description;
  std::string argument;        // "PATH"
  std::string about_argument;  // what the help says of the argument
  std::string footer;
  // Prints the answer, as JSON or for people. Returns the exit code (system.h).
  std::function<Result<int>(const Target&, bool as_json)> run;
  // With this flag, if there is one, its own `run` is called instead.
  struct Flag {
    std::string name;  // "--accept"
    std::string about;
    std::function<Result<int>(const Target&, bool as_json)> run;
  };
  std::optional<Flag> flag = std::nullopt;
  bool required = false;  // the path may not be left out
};

// Adds the command. It finds the mount, calls `run`, and prints errors of both.
void add_path_command(CLI::App& app, Chosen& chosen, const PathCommand& command);

struct StepsArguments {
  std::vector<std::string> steps;
  bool as_json = false;
};
// Does the same to each of the steps, also if it fails on another one. What `act` returns is printed at once by
// `print`, if there is one, or in the end as JSON: {KEY: [...]}. Returns the exit code (system.h).
int for_each_step(const StepsArguments& arguments, const char* key,
                  const std::function<Result<nlohmann::json>(const std::string& step)>& act,
                  const std::function<void(const nlohmann::json&)>& print = {});

}  // namespace ckptfs::fs::cli

// A command that takes --json and one path in a mount, which may be left out. Main thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>

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

}  // namespace ckptfs::fs::cli

// The commands that take one path of a mount, which may be left out, and --json. Main thread only.
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
  std::string about_argument;  // its line of the help
  std::string footer;
  // Prints the answer, as JSON or to be read; returns the exit code (system.h).
  std::function<Result<int>(const Target&, bool as_json)> run;
  // A flag with which something else is run, if it has one.
  struct Flag {
    std::string name;  // "--accept"
    std::string about;
    std::function<Result<int>(const Target&, bool as_json)> run;
  };
  std::optional<Flag> flag = std::nullopt;
};

// Finds the mount and tells errors, before `run` and from it.
void add_path_command(CLI::App& app, Chosen& chosen, const PathCommand& command);

}  // namespace ckptfs::fs::cli

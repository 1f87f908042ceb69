// The command line as data: what `--help`, the shells' completion and docs/commands.md are all made from. Main thread
// only.
#pragma once

#include <string>
#include <vector>

#include "fs/cli/commands.h"

namespace ckptfs::fs::cli {

// All subcommands, in the order in which --help lists them.
void add_all_commands(CLI::App& app, Chosen& chosen);

struct OptionOutline {
  std::vector<std::string> names;  // "-f", "--foreground"; of an argument none
  std::string argument;            // its value, "VALUE", or the argument's name, "STORE"; empty: it takes none
  std::string description;
  std::vector<std::string> choices;  // values that completion offers; empty: files, or anything
  bool required = false;
  bool repeats = false;
};

struct CommandOutline {
  std::string name;
  std::string description;
  std::string footer;
  std::vector<OptionOutline> options;
  std::vector<OptionOutline> arguments;
};

std::vector<CommandOutline> outline_of(const CLI::App& app);

// For `shell`: bash, zsh or fish.
std::string completion_of(const std::vector<CommandOutline>& commands, const std::string& shell);
// docs/commands.md
std::string reference_of(const std::vector<CommandOutline>& commands);

}  // namespace ckptfs::fs::cli

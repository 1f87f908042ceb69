// The command line as data. `--help`, the shells' completion and docs/commands.md are made from it. Main thread only.
#pragma once

#include <string>
#include <vector>

#include "fs/cli/commands.h"

namespace ckptfs::fs::cli {

// Adds all subcommands, in the order in which --help lists them.
void add_all_commands(CLI::App& app, Chosen& chosen);

struct OptionOutline {
  std::vector<std::string> names;  // "-f", "--foreground"; empty: it is an argument
  std::string argument;            // of an option "VALUE", or empty if it takes none; of an argument its name, "STORE"
  std::string description;
  std::vector<std::string> choices;  // values that completion offers; empty: files, or anything
  bool required = false;
  bool repeats = false;
};

struct CommandOutline {
  std::string name;
  std::string group;  // the command that it is a command of: "remote"; else empty
  std::string description;
  std::string footer;
  std::vector<OptionOutline> options;
  std::vector<OptionOutline> arguments;  // of a group the first one has the names of its commands as its choices

  std::string words() const;  // "save", "remote check"
};

// The commands of a group come after it.
std::vector<CommandOutline> outline_of(const CLI::App& app);

// The completion script for `shell`: bash, zsh or fish.
std::string completion_of(const std::vector<CommandOutline>& commands, const std::string& shell);
// The text of docs/commands.md, and of the manual page ckptfs(1), in troff's man macros.
std::string reference_of(const std::vector<CommandOutline>& commands);
std::string manual_page_of(const std::vector<CommandOutline>& commands);

// If the first of `words` that should name a command names none: says so, with the name that is nearest to it. Else
// empty.
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace ckptfs::fs::cli

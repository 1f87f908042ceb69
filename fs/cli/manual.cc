// ckptfs help, and what is made from the same outline as it: docs/commands.md and the manual page.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <sstream>

#include "fs/cli/command_line.h"
#include "fs/cli/system.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

std::string usage_of(const CommandOutline& command) {
  std::string text = "ckptfs " + command.words();
  if (!command.options.empty()) text += " [OPTIONS]";
  for (const OptionOutline& argument : command.arguments) {
    const std::string name = argument.argument + (argument.repeats ? "..." : "");
    text += argument.required ? " " + name : " [" + name + "]";
  }
  return text;
}

constexpr const char* kFoundDamage = "damage was found by fsck, remote verify, state or verify";

// "-f, --foreground", "--image VALUE", "STORE"
std::string shown(const OptionOutline& option) {
  std::string text = io::joined(option.names);
  if (!option.argument.empty()) text += (text.empty() ? "" : " ") + option.argument;
  return text;
}

// The text for troff, which reads a line that begins with a point or an apostrophe as a request.
std::string troff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (result.empty() || result.back() == '\n')) result += "\\&";
    if (c == '\\' || c == '-') result += '\\';
    result += c == '\\' ? 'e' : c;
  }
  return result;
}

std::string manual_of(const CommandOutline& command) {
  std::string text = ".SS " + troff(usage_of(command)) + "\n" + troff(command.description) + ".\n";
  for (const auto* list : {&command.arguments, &command.options}) {
    for (const OptionOutline& option : *list) {
      text += ".TP\n.B " + troff(shown(option)) + "\n" + troff(option.description) + "\n";
    }
  }
  if (!command.footer.empty()) text += ".PP\n.nf\n" + troff(command.footer) + "\n.fi\n";
  return text;
}

int run_help(const CLI::App& app, const std::vector<std::string>& words) {
  if (const std::string why = unknown_command(app, words); !why.empty()) {
    std::fprintf(stderr, "ckptfs: %s; see `ckptfs help`\n", why.c_str());
    return kUsage;
  }
  const CLI::App* command = &app;
  std::string before;
  for (const std::string& word : words) {
    before += (before.empty() ? "" : " ") + command->get_name();
    command = command->get_subcommand(word);
  }
  std::fputs(command->help(before).c_str(), stdout);
  return kSuccess;
}

}  // namespace

std::string reference_of(const std::vector<CommandOutline>& commands) {
  std::string text =
      "# Commands\n\n"
      "Made by `ckptfs help --markdown`: what `--help` says, on one page. Without a path a command means the\n"
      "only ckptfs mount. Exit codes: 0, 1 (failed), 2 (usage), 3 (" +
      std::string(kFoundDamage) +
      ").\n"
      "[A page](json.md) lists what `--json` prints. Shells complete all of it: `ckptfs completion --help`.\n";
  for (const CommandOutline& command : commands) {
    text += "\n## ckptfs " + command.words() + "\n\n" + command.description + ".\n\n    " + usage_of(command);
    text += "\n\n| | |\n|---|---|\n";
    for (const auto* list : {&command.arguments, &command.options}) {
      for (const OptionOutline& option : *list) {
        std::string about = option.description;
        for (size_t at = 0; (at = about.find_first_of("|\n", at)) != std::string::npos; ++at) {
          about.replace(at, 1, about[at] == '|' ? "\\|" : " ");
          if (about[at] == '\\') ++at;
        }
        text += "| `" + shown(option) + "` | " + about + " |\n";
      }
    }
    text += "\n";
    std::istringstream footer(command.footer);
    for (std::string line; std::getline(footer, line);) text += line.empty() ? "\n" : "    " + line + "\n";
  }
  return text;
}

std::string manual_page_of(const std::vector<CommandOutline>& commands) {
  std::string text = ".TH CKPTFS 1 \"\" \"ckptfs " CKPTFS_VERSION
                     "\"\n"
                     ".SH NAME\nckptfs \\- a file system for training checkpoints\n"
                     ".SH SYNOPSIS\n.B ckptfs\n.I COMMAND\n[OPTIONS]\n"
                     ".SH DESCRIPTION\nWithout a path a command means the only ckptfs mount.\n"
                     ".SH COMMANDS\n";
  for (const CommandOutline& command : commands) text += manual_of(command);
  return text + ".SH EXIT STATUS\n0: success. 1: failed. 2: wrong usage. 3: " + kFoundDamage + ".\n";
}

void add_help(CLI::App& app, Chosen& chosen) {
  struct Arguments {
    std::vector<std::string> words;
    bool markdown = false;
    bool manual = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("help", "Print the help of a command, or the whole manual");
  auto* words = command->add_option("COMMAND", arguments->words, "A command, as `mount` or `remote check`");
  auto* markdown = command->add_flag("--markdown", arguments->markdown, "Print all commands as docs/commands.md");
  command->add_flag("--man", arguments->manual, "Print the manual page")->excludes(markdown)->excludes(words);
  markdown->excludes(words);
  command->footer("Example:\n  ckptfs help remote check");
  command->callback([&app, arguments, &chosen] {
    chosen = [&app, arguments] {
      if (!arguments->markdown && !arguments->manual) return run_help(app, arguments->words);
      const auto commands = outline_of(app);
      std::fputs((arguments->manual ? manual_page_of(commands) : reference_of(commands)).c_str(), stdout);
      return static_cast<int>(kSuccess);
    };
  });
}

}  // namespace ckptfs::fs::cli

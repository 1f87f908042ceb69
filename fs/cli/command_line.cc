#include "fs/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <map>
#include <sstream>

#include "fs/cli/log.h"
#include "fs/cli/mount_options.h"
#include "meta/steps/policy.h"

namespace ckptfs::fs::cli {
namespace {

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> std::ws && std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

std::vector<std::string> rules(const char* after) {
  std::vector<std::string> words;
  for (const std::string& rule : meta::policy_rules()) words.push_back(rule + after);
  return words;
}

// Values that completion offers and that the parser does not know.
std::vector<std::string> choices_of(const std::string& command, const std::string& option) {
  if (option == "-o") return mount_option_words();
  if (option == "--set") return rules("=");
  if (option == "--unset") return rules("");
  if (option == "--log-level") return split_list(kLogLevels);
  if (option == "--to") return {"same", "bf16", "fp16", "fp32"};
  if (option == "--sector") return {"512", "4096"};
  if (command == "completion" && option.empty()) return {"bash", "zsh", "fish"};
  return {};
}

OptionOutline outline_of(const CLI::Option& option, const std::string& command) {
  OptionOutline outline;
  for (const std::string& name : option.get_snames()) outline.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) outline.names.push_back("--" + name);
  const bool takes_value = option.get_items_expected_max() > 0;
  if (outline.names.empty()) {
    outline.argument = option.get_name(true);
  } else if (takes_value) {
    outline.argument = "VALUE";
  }
  outline.description = option.get_description();
  outline.choices = choices_of(command, outline.names.empty() ? "" : outline.names.front());
  outline.required = option.get_required();
  outline.repeats = option.get_items_expected_max() > 1;
  return outline;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

CommandOutline outline_of_command(const CLI::App& command, const std::string& group) {
  CommandOutline outline;
  outline.name = command.get_name();
  outline.group = group;
  outline.description = command.get_description();
  outline.footer = command.get_footer();
  if (!commands_of(command).empty()) {
    outline.arguments.push_back({{}, "COMMAND", "One of the commands below", {}, true, false});
  }
  for (const CLI::Option* const option : command.get_options()) {
    OptionOutline one = outline_of(*option, outline.name);
    (one.names.empty() ? outline.arguments : outline.options).push_back(std::move(one));
  }
  return outline;
}

}  // namespace

std::string CommandOutline::words() const { return group.empty() ? name : group + " " + name; }

void add_all_commands(CLI::App& app, Chosen& chosen) {
  for (const auto add :
       {add_mount, add_umount, add_save, add_ls, add_show, add_du, add_diff, add_policy, add_rm, add_thin, add_verify,
        add_remote, add_push, add_fetch, add_status, add_fsck, add_doctor, add_completion}) {
    add(app, chosen);
  }
}

std::vector<CommandOutline> outline_of(const CLI::App& app) {
  std::vector<CommandOutline> commands;
  for (const CLI::App* const command : commands_of(app)) {
    commands.push_back(outline_of_command(*command, ""));
    for (const CLI::App* const one : commands_of(*command)) {
      commands.back().arguments.front().choices.push_back(one->get_name());
    }
    for (const CLI::App* const one : commands_of(*command)) {
      commands.push_back(outline_of_command(*one, command->get_name()));
    }
  }
  return commands;
}

std::string reference_of(const std::vector<CommandOutline>& commands) {
  std::string text =
      "# Commands\n\n"
      "Made by `ckptfs completion --reference`: what `--help` says, on one page. Without a path a command means the\n"
      "only ckptfs mount. Exit codes: 0, 1 (failed), 2 (usage). Shells complete all of it: `ckptfs completion "
      "--help`.\n";
  for (const CommandOutline& command : commands) {
    text += "\n## ckptfs " + command.words() + "\n\n" + command.description + ".\n\n    ckptfs " + command.words();
    if (!command.options.empty()) text += " [OPTIONS]";
    for (const OptionOutline& argument : command.arguments) {
      const std::string name = argument.argument + (argument.repeats ? "..." : "");
      text += argument.required ? " " + name : " [" + name + "]";
    }
    text += "\n\n| | |\n|---|---|\n";
    for (const auto* list : {&command.arguments, &command.options}) {
      for (const OptionOutline& option : *list) {
        std::string names;
        for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + name;
        if (!option.argument.empty()) names += (names.empty() ? "" : " ") + option.argument;
        std::string about = option.description;
        for (size_t at = 0; (at = about.find_first_of("|\n", at)) != std::string::npos; ++at) {
          about.replace(at, 1, about[at] == '|' ? "\\|" : " ");
          if (about[at] == '\\') ++at;
        }
        text += "| `" + names + "` | " + about + " |\n";
      }
    }
    text += "\n";
    std::istringstream footer(command.footer);
    for (std::string line; std::getline(footer, line);) text += line.empty() ? "\n" : "    " + line + "\n";
  }
  return text;
}

}  // namespace ckptfs::fs::cli

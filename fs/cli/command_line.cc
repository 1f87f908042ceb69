#include "fs/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

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

// Levenshtein's distance: letters to insert, remove or replace.
size_t distance(const std::string& one, const std::string& other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < one.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < other.size(); ++j) {
      const size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string nearest(const std::vector<const CLI::App*>& commands, const std::string& word) {
  std::string found;
  size_t best = 3;  // letters: more is another word
  for (const CLI::App* const command : commands) {
    const size_t here = distance(word, command->get_name());
    if (here < best && here < word.size()) best = here, found = command->get_name();
  }
  return found;
}

}  // namespace

std::string unknown_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* group = &app;
  std::string before = "ckptfs";
  for (const std::string& word : words) {
    const auto commands = commands_of(*group);
    if (word.starts_with("-") || commands.empty()) return "";
    const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
    if (found == commands.end()) {
      const std::string other = nearest(commands, word);
      const std::string question = other.empty() ? "" : "; did you mean `" + before + " " + other + "`?";
      return "there is no command `" + before + " " + word + "`" + question;
    }
    group = *found;
    before += " " + word;
  }
  return "";
}

std::string CommandOutline::words() const { return group.empty() ? name : group + " " + name; }

void add_all_commands(CLI::App& app, Chosen& chosen) {
  for (const auto add :
       {add_mount, add_umount, add_save,   add_ls,     add_latest, add_state,      add_wait,   add_watch,  add_show,
        add_du,    add_diff,   add_policy, add_marks,  add_rm,     add_thin,       add_verify, add_remote, add_push,
        add_fetch, add_status, add_fsck,   add_doctor, add_debug,  add_completion, add_help}) {
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

}  // namespace ckptfs::fs::cli

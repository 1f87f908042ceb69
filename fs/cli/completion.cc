// ckptfs completion: prints the script by which a shell completes the commands. It is made from the same outline as
// --help.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <set>

#include "fs/cli/command_line.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& separator = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

// The text on one line, without characters that would end a quoted word in one of the shells, or mean something in a
// zsh spec.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n' || c == ':') {
      result += c == ':' ? ',' : ' ';
    } else if (std::string_view("'[]\\").find(c) == std::string_view::npos) {
      result += c;
    }
  }
  return result;
}

std::string names_of(const std::vector<CommandOutline>& commands) {
  std::vector<std::string> names;
  for (const CommandOutline& command : commands) {
    if (command.group.empty()) names.push_back(command.name);
  }
  return joined(names);
}

std::set<std::string> groups_of(const std::vector<CommandOutline>& commands) {
  std::set<std::string> groups;
  for (const CommandOutline& command : commands) {
    if (!command.group.empty()) groups.insert(command.group);
  }
  return groups;
}

// Is its value a comma list, as that of mount(8)'s -o a,b=c?
bool is_list(const OptionOutline& option) { return option.names == std::vector<std::string>{"-o"}; }

// The value of -o is a comma list of choices. The value of any other option is one choice.
std::string for_bash(const std::vector<CommandOutline>& commands) {
  std::string text =
      "# bash completion of ckptfs: source it, or put it into /usr/share/bash-completion/completions/ckptfs\n"
      "_ckptfs() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} at=$COMP_CWORD offered= list= typed=\n"
      "  # readline takes NAME=VALUE for three words, and wants the last one only\n"
      "  while ((at > 2)) && [[ ${COMP_WORDS[at]} == = || ${COMP_WORDS[at-1]} == = ]]; do\n"
      "    ((at--))\n"
      "    word=${COMP_WORDS[at]}$word\n"
      "  done\n"
      "  local before=${COMP_WORDS[at-1]}\n"
      "  if [[ $word == *=* ]]; then typed=${word%=*}=; fi\n"
      "  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W '" +
      names_of(commands) +
      " --help --version' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  local command=${COMP_WORDS[1]}\n";
  for (const std::string& group : groups_of(commands)) {
    text += "  if [[ $command == " + group + " ]] && ((COMP_CWORD > 2)); then command+=\" ${COMP_WORDS[2]}\"; fi\n";
  }
  text += "  case $command in\n";
  for (const CommandOutline& command : commands) {
    std::vector<std::string> options;
    text += "    '" + command.words() + "')\n      case $before in\n";
    for (const OptionOutline& option : command.options) {
      options.insert(options.end(), option.names.begin(), option.names.end());
      if (option.argument.empty()) continue;
      text += "        " + joined(option.names, "|") + ") offered='" + joined(option.choices) + "' ;;\n";
    }
    std::string words;
    for (const OptionOutline& argument : command.arguments) words += joined(argument.choices);
    text += "        *) [[ $word == -* ]] && offered='" + joined(options) + "' || offered='" + words +
            "' ;;\n      esac ;;\n";
  }
  return text +
         "  esac\n"
         "  if [[ $before == -o && $word == *,* ]]; then list=${word%,*},; fi\n"
         "  COMPREPLY=($(compgen -P \"$list\" -W \"$offered\" -- \"${word#\"$list\"}\"))\n"
         "  COMPREPLY=(\"${COMPREPLY[@]#\"$typed\"}\")\n"
         "  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace; fi\n"
         "}\n"
         "complete -o default -F _ckptfs ckptfs\n";
}

std::string zsh_value(const OptionOutline& option) {
  if (option.argument.empty()) return "";
  const std::string what = ":" + option.argument + ":";
  if (option.choices.empty()) return what + "_files";
  if (is_list(option)) return what + "_sequence compadd - " + joined(option.choices);
  if (option.choices.front().ends_with("=")) return what + "( " + joined(option.choices) + " )";
  return what + "(" + joined(option.choices) + ")";
}

std::string for_zsh(const std::vector<CommandOutline>& commands) {
  std::string text =
      "#compdef ckptfs\n"
      "# zsh completion of ckptfs: put it as _ckptfs into a folder of fpath, or source it after compinit\n"
      "_ckptfs() {\n"
      "  if ((CURRENT == 2)); then\n"
      "    local -a commands=(\n";
  for (const CommandOutline& command : commands) {
    if (command.group.empty()) text += "      '" + command.name + ":" + plain(command.description) + "'\n";
  }
  text +=
      "    )\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  ((CURRENT--))\n";
  for (const std::string& group : groups_of(commands)) {
    text += "  if [[ $command == " + group +
            " ]] && ((CURRENT > 2)); then\n    command+=\" $words[2]\"\n    shift words\n    ((CURRENT--))\n  fi\n";
  }
  text += "  case $command in\n";
  for (const CommandOutline& command : commands) {
    text += "    '" + command.words() + "')\n      _arguments";
    for (const OptionOutline& option : command.options) {
      for (const std::string& name : option.names) {
        text += " \\\n        '*" + name + "[" + plain(option.description) + "]" + zsh_value(option) + "'";
      }
    }
    for (const OptionOutline& argument : command.arguments) {
      text += " \\\n        '" + std::string(argument.repeats ? "*" : "") + zsh_value(argument) + "'";
    }
    text += " ;;\n";
  }
  return text +
         "  esac\n"
         "}\n"
         "(( $+functions[compdef] )) && compdef _ckptfs ckptfs\n";
}

// When fish offers the options and arguments of a command. A command of a group may have the name of another command.
std::string fish_condition(const CommandOutline& command, const std::vector<CommandOutline>& commands) {
  const auto seen = [](const std::string& names) { return "__fish_seen_subcommand_from " + names; };
  if (!command.group.empty()) return seen(command.group) + "; and " + seen(command.name);
  const auto groups = groups_of(commands);
  std::vector<std::string> others(groups.begin(), groups.end());
  if (groups.contains(command.name)) others = command.arguments.front().choices;
  return seen(command.name) + (others.empty() ? "" : "; and not " + seen(joined(others)));
}

std::string for_fish(const std::vector<CommandOutline>& commands) {
  std::string text =
      "# fish completion of ckptfs: source it, or put it into ~/.config/fish/completions/ckptfs.fish\n"
      "complete -c ckptfs -n __fish_use_subcommand -f\n";
  for (const CommandOutline& command : commands) {
    const std::string here = "complete -c ckptfs -n '" + fish_condition(command, commands) + "'";
    if (command.group.empty()) {
      text += "complete -c ckptfs -n __fish_use_subcommand -a " + command.name + " -d '" + plain(command.description) +
              "'\n";
    }
    for (const OptionOutline& option : command.options) {
      text += here;
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.argument.empty()) text += " -r";
      if (is_list(option)) {
        text += " -f -a \"(__fish_complete_list , 'string split \\\" \\\" \\\"" + joined(option.choices) + "\\\"')\"";
      } else if (!option.choices.empty()) {
        text += " -f -a '" + joined(option.choices) + "'";
      }
      text += " -d '" + plain(option.description) + "'\n";
    }
    for (const OptionOutline& argument : command.arguments) {
      if (!argument.choices.empty()) text += here + " -f -a '" + joined(argument.choices) + "'\n";
    }
  }
  return text;
}

}  // namespace

std::string completion_of(const std::vector<CommandOutline>& commands, const std::string& shell) {
  if (shell == "zsh") return for_zsh(commands);
  return shell == "fish" ? for_fish(commands) : for_bash(commands);
}

void add_completion(CLI::App& app, Chosen& chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print what a shell needs to complete ckptfs");
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "The packages install all three.\n"
      "Examples:\n"
      "  source <(ckptfs completion bash)\n"
      "  ckptfs completion zsh >/usr/local/share/zsh/site-functions/_ckptfs\n"
      "  ckptfs completion fish >~/.config/fish/completions/ckptfs.fish");
  command->callback([&app, shell, &chosen] {
    chosen = [&app, shell] {
      std::fputs(completion_of(outline_of(app), *shell).c_str(), stdout);
      return static_cast<int>(kSuccess);
    };
  });
}

}  // namespace ckptfs::fs::cli

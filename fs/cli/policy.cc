// ckptfs policy: sets the rules of a series, and tells which steps stay by which rule, and which go.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct PolicyArguments {
  std::string series;
  std::vector<std::string> set;    // RULE=VALUE
  std::vector<std::string> unset;  // RULE
  bool dry_run = false;
  bool as_json = false;
};

Result<json> changes_of(const PolicyArguments& arguments) {
  json changes = json::object();
  for (const std::string& rule : arguments.unset) changes[rule] = "";
  for (const std::string& text : arguments.set) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      return Error(EINVAL, "--set " + text + ": it takes RULE=VALUE, as in keep_last=3");
    }
    changes[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return changes;
}

std::string joined(const json& words) {
  std::string text;
  for (const json& word : words) text += (text.empty() ? "" : ", ") + word.get<std::string>();
  return text;
}

std::string rules_of(const json& rules) {
  std::string text;
  for (const auto& [rule, value] : rules.items())
    text += (text.empty() ? "" : " ") + rule + "=" + value.get<std::string>();
  return text.empty() ? "none: every complete step stays" : text;
}

Cell verdict_on(const json& step) {
  if (!step.value("stays", true)) return {"goes", Colour::red};
  if (step.value("thins", false)) return {"is thinned", Colour::yellow};
  return {"stays", Colour::green};
}

std::string steps_table(const json& steps) {
  using Align = Table::Align;
  const bool any_full = std::any_of(steps.begin(), steps.end(), [](const json& step) {
    return step.value("thins", false) || !step.value("full_because", "").empty();
  });
  std::vector<Table::Column> columns{{"TAG"}, {"NUMBER", Align::right}, {"STATE"}, {"AGE", Align::right}, {"VERDICT"},
                                     {"BY"}};
  if (any_full) columns.push_back({"STAYS FULL BY"});
  Table table(std::move(columns));
  const int64_t now = std::time(nullptr);
  for (const json& step : steps) {
    const std::string reason = step.value("reason", "");
    const uint64_t number = step.value("number", uint64_t{0});
    std::vector<Cell> row{{printable(step.value("tag", ""))},
                          {number == 0 ? "" : std::to_string(number)},
                          {step.value("state", "") + (reason.empty() ? "" : printable(": " + reason))},
                          {human_age(now - step.value("completed", now))},
                          verdict_on(step),
                          {joined(step.value("by", json::array()))}};
    if (any_full) row.push_back({printable(step.value("full_because", ""))});
    table.add(std::move(row));
  }
  return table.text(stdout_is_terminal());
}

void print_policy(const json& result) {
  const json steps = result.value("steps", json::array());
  std::printf("%s: %s\nrules: %s\n", printable(result.value("series", "")).c_str(),
              counted(steps.size(), "step").c_str(), printable(rules_of(result.value("set", json::object()))).c_str());
  if (!result.value("is_armed", false)) {
    const bool sets_aside = result.value("set", json::object()).contains("set_aside");
    std::printf(
        "not armed: these rules run once the series was left alone and then a step completes%s; until then: %s\n",
        sets_aside ? " (set_aside acts at once)" : "",
        printable(rules_of(result.value("armed", json::object()))).c_str());
  }
  if (!steps.empty()) std::printf("\n%s", steps_table(steps).c_str());
  const json others = result.value("others", json::array());
  if (!others.empty()) std::printf("\nNo steps, never removed:\n");
  for (const json& other : others) {
    std::printf("  %s: %s\n", printable(other.value("name", "")).c_str(), other.value("reason", "").c_str());
  }
  for (const json& warning : result.value("warnings", json::array())) {
    std::fprintf(stderr, "ckptfs: warning: %s\n", printable(warning.get<std::string>()).c_str());
  }
}

int run(const PolicyArguments& arguments) {
  const auto changes = changes_of(arguments);
  if (!changes) {
    fail(changes.error());
    return kUsage;
  }
  const auto target = find_target(arguments.series.empty() ? std::nullopt : std::optional(arguments.series));
  if (!target) return fail(target.error());
  const std::string path = target.value().path == target.value().mount.root ? "/steps" : target.value().path;
  const json request = {{"path", path}, {"set", changes.value()}, {"dry_run", arguments.dry_run}};
  const auto result = ask_and_wait(target.value().mount, "looking at the steps", "policy", request);
  if (!result) return fail(arguments.series.empty() ? path : arguments.series, result.error());
  return print_answer(arguments.as_json, result.value(), [&] { print_policy(result.value()); });
}

}  // namespace

void add_policy(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<PolicyArguments>();
  CLI::App* command = app.add_subcommand("policy", "Which steps of a series stay, and by which rule");
  command->add_option("SERIES", arguments->series, "A series (default: steps of the only mount)");
  command->add_option("--set", arguments->set, "Set a rule: RULE=VALUE; may be repeated")->allow_extra_args(false);
  command->add_option("--unset", arguments->unset, "Take a rule away; may be repeated")->allow_extra_args(false);
  command->add_flag("--dry-run", arguments->dry_run, "Show what these rules would do, and set none");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "Rules: keep_last=N, keep_every=N, keep_for=7d, keep_best=NAME:min:N, keep_partial=2d, keep_unknown=30d,\n"
      "max_bytes=2T, min_free=100G, seal_after=1h, set_aside=1, keep_full=N, thin_to=bf16, push=manual,\n"
      "hold_unpushed=N; steps='iter_*' and complete_when=FILE say which folders are steps, and when one is complete.\n"
      "A complete step stays if any keep rule keeps it, or none is set; the newest complete one, a pinned one, the\n"
      "one that `latest` names, and one in use always do.\n"
      "Example:\n  ckptfs policy\n  ckptfs policy /ckpt/runs/a --set keep_last=3 --set keep_every=1000 --dry-run");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

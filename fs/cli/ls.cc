// ckptfs ls: lists the steps of one series or of all.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/step_states.h"
#include "fs/cli/system.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

Colour colour_of(const std::string& state) {
  if (state == "complete" || state == "sealed" || state == "weights") return Colour::green;
  if (state == "being removed" || state == "damaged") return Colour::red;
  return Colour::yellow;
}

std::string number_or_nothing(const json& step, const char* key) {
  const uint64_t number = step.value(key, uint64_t{0});
  return number == 0 ? "" : std::to_string(number);
}

// Names what keeps the step: rules of the series, or protections. Empty: no rule is about this step.
Cell kept_by(const json& step) {
  if (!step.value("stays", true)) return {"goes", Colour::red};
  std::string by;
  for (const json& reason : step.value("by", json::array())) {
    const std::string name = reason.get<std::string>();
    if (name == "no rule" || name == "unknown" || name == "incomplete") continue;
    by += (by.empty() ? "" : ", ") + name;
  }
  return {by};
}

// The table of one series.
std::string series_table(const std::vector<json>& steps) {
  using Align = Table::Align;
  const bool pushed = std::ranges::any_of(steps, [](const json& step) { return step.contains("remote"); });
  Table table({{"TAG"},
               {"NUMBER", Align::right},
               {"STATE"},
               {"KIND"},
               {"RANKS", Align::right},
               {"FILES", Align::right},
               {"SIZE", Align::right},
               {"EXCLUSIVE", Align::right},
               {"SHARED", Align::right},
               {"AGE", Align::right},
               {"KEPT BY"},
               {pushed ? "REMOTE" : ""}});
  const int64_t now = std::time(nullptr);
  std::string notes;
  for (const json& step : steps) {
    const std::string tag = step.value("tag", "");
    const std::string state = step.value("state", "unknown");
    table.add({{tag},
               {number_or_nothing(step, "number")},
               {state, colour_of(state)},
               {step.value("kind", "")},
               {number_or_nothing(step, "ranks")},
               {step.contains("files") ? std::to_string(step.value("files", uint64_t{0})) : "?"},
               {step.contains("bytes") ? human_size(step.value("bytes", uint64_t{0})) : "?"},
               {human_size(step.value("exclusive", uint64_t{0}))},
               {human_size(step.value("shared", uint64_t{0}))},
               {human_age(now - step.value("mtime", int64_t{0}))},
               kept_by(step),
               {step.value("remote", "")}});
    const std::string reason = step.value("reason", "");
    if (!reason.empty()) notes += printable("  " + tag + ": " + state + ": " + reason) + "\n";
    std::string stale;
    for (const json& name : step.value("perhaps_stale", json::array())) stale += " " + name.get<std::string>();
    if (!stale.empty()) notes += printable("  " + tag + ": perhaps stale:" + stale) + "\n";
  }
  return table.text(stdout_is_terminal()) + notes;
}

void print_steps(const json& steps, const std::string& mountpoint) {
  std::vector<std::pair<std::string, std::vector<json>>> series;
  for (const json& step : steps) {
    const std::string name = step.value("series", "");
    if (series.empty() || series.back().first != name) series.push_back({name, {}});
    series.back().second.push_back(step);
  }
  for (size_t i = 0; i < series.size(); ++i) {
    std::printf("%s%s: %s\n%s", i == 0 ? "" : "\n", printable(series[i].first).c_str(),
                counted(series[i].second.size(), "step").c_str(), series_table(series[i].second).c_str());
  }
  if (series.empty()) {
    std::printf(
        "No steps yet. They appear when a training saves into a folder of %s (output_dir, save_dir and the like).\n",
        printable(mountpoint).c_str());
  }
}

// The columns that -o knows: fields of --json.
constexpr const char* kFields[] = {"series", "tag",       "number", "state", "reason",    "kind",  "ranks", "files",
                                   "bytes",  "exclusive", "shared", "mtime", "completed", "saved", "owner", "sealed",
                                   "pinned", "metric",    "stays",  "by",    "remote",    "path"};

std::string all_fields() { return io::joined(kFields, ","); }

struct LsArguments {
  std::string path;
  std::vector<std::string> columns;
  bool no_header = false;
  bool as_json = false;
};

// For programs: as in --json, lists with commas, and nothing for what is not known.
std::string plain(const json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return printable(value.get<std::string>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const json& one : value) text += (text.empty() ? "" : ",") + plain(one);
  return text;
}

// Lines of values between tabs.
void print_columns(const json& steps, LsArguments arguments) {
  if (arguments.columns.empty())
    arguments.columns = {"tag", "number", "state", "kind", "files", "bytes", "exclusive", "by"};
  if (!arguments.no_header) std::printf("%s\n", io::joined(arguments.columns, "\t").c_str());
  for (const json& step : steps) {
    std::string line;
    for (const std::string& column : arguments.columns) {
      line += (&column == arguments.columns.data() ? "" : "\t") + plain(step.value(column, json()));
    }
    std::printf("%s\n", line.c_str());
  }
}

int run(const LsArguments& arguments) {
  const auto target = find_target(arguments.path.empty() ? std::nullopt : std::optional(arguments.path));
  if (!target) return fail(target.error());
  auto result = ask_and_wait(target.value().mount, "looking at the steps", "ls", {{"path", target.value().path}});
  if (!result) return fail(io::path_outside(target.value().mount, target.value().path), result.error());
  json& steps = result.value()["steps"];
  add_paths(steps, target.value().mount);
  if (arguments.as_json) {
    print_json(result.value());
  } else if (arguments.no_header || !arguments.columns.empty()) {
    print_columns(steps, arguments);
  } else {
    print_steps(steps, target.value().mount.mountpoint);
  }
  return kSuccess;
}

}  // namespace

void add_ls(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<LsArguments>();
  CLI::App* command =
      app.add_subcommand("ls", "List steps: state, kind, ranks, files, what they cost, and what keeps them");
  command->add_option("PATH", arguments->path, "A mount, a series or a step (default: the only mount)");
  command->add_option("-o", arguments->columns, "Print these columns, with tabs between them: " + all_fields())
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("FIELD,...")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kFields), std::end(kFields))));
  command->add_flag("-H", arguments->no_header, "No header, and tabs between the columns");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "SIZE is apparent: blocks shared between steps are counted in each. EXCLUSIVE is what removing just this step "
      "would\n"
      "free. KEPT BY: what rotation keeps it for (ckptfs policy). Of -o and --json: sizes are bytes, times seconds "
      "since\n"
      "1970; `saved` is of `ckptfs save`; `by` is what keeps the step, or why it goes, which `stays` tells.\n"
      "Example:\n  ckptfs ls\n  ckptfs ls --json /ckpt/steps\n  ckptfs ls -H -o tag,state,bytes /ckpt/steps");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

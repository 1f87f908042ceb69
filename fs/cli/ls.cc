// ckptfs ls: lists the steps of one series or of all.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
#include "fs/cli/system.h"

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

void print_steps(const json& steps) {
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
  if (series.empty()) std::printf("No steps yet: save_checkpoint into MOUNTPOINT/steps, or ckptfs save TAG.\n");
}

Result<int> run_ls(const Target& target, bool as_json) {
  TRY_ASSIGN(const json result, ask_and_wait(target.mount, "looking at the steps", "ls", {{"path", target.path}}));
  if (as_json) {
    print_json(result);
  } else {
    print_steps(result.value("steps", json::array()));
  }
  return kSuccess;
}

}  // namespace

void add_ls(CLI::App& app, Chosen& chosen) {
  add_path_command(app, chosen,
                   {"ls", "List steps: state, kind, ranks, files, what they cost, and what keeps them", "PATH",
                    "A mount, a series or a step (default: the only mount)",
                    "SIZE is apparent: blocks shared between steps are counted in each. EXCLUSIVE is what removing "
                    "just this step would\n"
                    "free. KEPT BY: what rotation keeps it for (ckptfs policy).\n"
                    "Example:\n  ckptfs ls\n  ckptfs ls --json /ckpt/steps",
                    run_ls});
}

}  // namespace ckptfs::fs::cli

// ckptfs du: what steps cost on the disk, whoever shares with whom.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

Table new_table(const std::string& what) {
  using Align = Table::Align;
  return Table({{what}, {"APPARENT", Align::right}, {"EXCLUSIVE", Align::right}, {"SHARED", Align::right}});
}

void add_row(Table& table, const std::string& name, const json& usage) {
  const auto size = [&usage](const char* key) { return human_size(usage.value(key, uint64_t{0})); };
  table.add({{name}, {size("apparent")}, {size("exclusive")}, {size("shared")}});
}

void print_usage(const json& result, bool one_step) {
  const json steps = result.value("steps", json::array());
  const json all_series = result.value("series", json::object());
  for (const auto& [series, together] : all_series.items()) {
    Table table = new_table("TAG");
    size_t count = 0;
    for (const json& step : steps) {
      if (step.value("series", "") != series) continue;
      add_row(table, step.value("tag", ""), step);
      ++count;
    }
    if (count > 1) add_row(table, "(together)", together);
    std::printf("%s: %s\n%s\n", printable(series).c_str(), counted(count, "step").c_str(),
                table.text(stdout_is_terminal()).c_str());
  }
  if (!one_step) {
    Table table = new_table("NO STEP");
    add_row(table, "live swap files", result.value("live", json::object()));
    add_row(table, "everything else", result.value("rest", json::object()));
    add_row(table, "being removed", result.value("nobody", json::object()));
    std::printf("%s\n", table.text(stdout_is_terminal()).c_str());
  }
  std::printf("EXCLUSIVE is what removing just this would free.\n");
}

int run(const std::string& path, bool as_json) {
  auto target = find_target(path.empty() ? std::nullopt : std::optional(path));
  if (!target) return fail(target.error());
  auto result = ask_daemon(target.value().mount, "du", {{"path", target.value().path}});
  if (!result) return fail(path.empty() ? target.value().mount.mountpoint : path, result.error());
  if (as_json) {
    print_json(result.value());
  } else {
    const json steps = result.value().value("steps", json::array());
    const bool one_step = steps.size() == 1 && target.value().path.ends_with("/" + steps[0].value("tag", ""));
    print_usage(result.value(), one_step);
  }
  return kSuccess;
}

}  // namespace

void add_du(CLI::App& app, Chosen& chosen) {
  struct Arguments {
    std::string path;
    bool as_json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("du", "What each step costs on the disk, and all of them together");
  command->add_option("PATH", arguments->path, "A mount, a series or a step (default: the only mount)");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "APPARENT is the length of the files, EXCLUSIVE what removing just this step would free, SHARED what else it\n"
      "uses on the disk, each block once. (together): all steps of the series as one.\n"
      "Example:\n  ckptfs du\n  ckptfs du --json /ckpt/steps");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return run(arguments->path, arguments->as_json); }; });
}

}  // namespace ckptfs::fs::cli

// ckptfs du: tells what steps cost on the disk, with shared blocks told apart.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
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

Result<int> run_du(const Target& target, bool as_json) {
  TRY_ASSIGN(const json result,
             ask_and_wait(target.mount, "asking what is on the disk", "du", {{"path", target.path}}));
  const json steps = result.value("steps", json::array());
  const bool one_step = steps.size() == 1 && target.path.ends_with("/" + steps[0].value("tag", ""));
  return print_answer(as_json, result, [&] { print_usage(result, one_step); });
}

}  // namespace

void add_du(CLI::App& app, Chosen& chosen) {
  add_path_command(
      app, chosen,
      {"du", "What each step costs on the disk, and all of them together", "PATH",
       "A mount, a series or a step (default: the only mount)",
       "APPARENT is the length of the files, EXCLUSIVE what removing just this step would free, SHARED what else it\n"
       "uses on the disk, each block once. (together): all steps of the series as one.\n"
       "Example:\n  ckptfs du\n  ckptfs du --json /ckpt/steps",
       run_du});
}

}  // namespace ckptfs::fs::cli

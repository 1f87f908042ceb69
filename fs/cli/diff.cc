// ckptfs diff: which files of two steps differ, and by how much.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/progress.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct DiffArguments {
  std::string first;
  std::string second;
  bool as_json = false;
};

using Files = std::map<std::string, json>;  // by path

// A file that took several requests is in several answers. The bytes of its parts add up.
void merge(Files& files, const json& answer) {
  for (const json& file : answer.value("files", json::array())) {
    const auto [known, fresh] = files.try_emplace(file.value("path", ""), file);
    if (fresh) continue;
    for (const char* key : {"bytes", "read"}) {
      known->second[key] = known->second.value(key, uint64_t{0}) + file.value(key, uint64_t{0});
    }
    if (file.value("change", "") == "changed") known->second["change"] = "changed";
  }
}

uint64_t sum(const Files& files, const char* key) {
  uint64_t total = 0;
  for (const auto& [path, file] : files) total += file.value(key, uint64_t{0});
  return total;
}

Result<Files> diff(const Target& first, const Target& second) {
  Files files;
  Progress progress("comparing");
  for (json request = {{"first", first.path}, {"second", second.path}}; true;) {
    TRY_ASSIGN(const json answer, ask_daemon(first.mount, "diff", request));
    merge(files, answer);
    progress.show(sum(files, "read"), 0);
    if (!answer.contains("next")) return files;
    request["from"] = answer["next"];
  }
}

void print(const Files& files) {
  using Align = Table::Align;
  Table table({{"FILE"}, {"CHANGE"}, {"BYTES", Align::right}, {"SIZE", Align::right}});
  uint64_t same = 0;
  for (const auto& [path, file] : files) {
    const std::string change = file.value("change", "");
    if (change == "same") ++same;
    if (change == "same") continue;
    table.add({{path},
               {change},
               {human_size(file.value("bytes", uint64_t{0}))},
               {human_size(file.value("size", uint64_t{0}))}});
  }
  if (same != files.size()) std::printf("%s", table.text(stdout_is_terminal()).c_str());
  std::printf("%s the same, %s differ: %s\n", counted(same, "file").c_str(),
              std::to_string(files.size() - same).c_str(), human_size(sum(files, "bytes")).c_str());
}

Result<Files> run(const DiffArguments& arguments) {
  TRY_ASSIGN(const Target first, find_target(arguments.first));
  TRY_ASSIGN(const Target second, find_target(arguments.second));
  if (first.mount.id != second.mount.id) {
    return Error(EXDEV,
                 arguments.second + ": it is on another mount than " + arguments.first + "; compare them with diff -r");
  }
  return diff(first, second);
}

int run_and_print(const DiffArguments& arguments) {
  const auto files = run(arguments);
  if (!files) return fail(files.error());
  json list = json::array();
  for (const auto& [path, file] : files.value()) list.push_back(file);
  const json answer = {
      {"files", std::move(list)}, {"bytes", sum(files.value(), "bytes")}, {"read", sum(files.value(), "read")}};
  return print_answer(arguments.as_json, answer, [&] { print(files.value()); });
}

}  // namespace

void add_diff(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command = app.add_subcommand("diff", "Show which files of two steps differ, and by how much");
  command->add_option("STEP", arguments->first, "A step")->required();
  command->add_option("OTHER", arguments->second, "Another")->required();
  command->add_flag("--json", arguments->as_json, "Print as JSON, the files that are the same too");
  command->footer(
      "Reads only what neither shared blocks nor digests tell. BYTES is an upper bound: it counts whole blocks, and\n"
      "whole MiB if only digests differ.\n"
      "Example:\n  ckptfs diff /ckpt/steps/global_step100 /ckpt/steps/global_step200");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run_and_print(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

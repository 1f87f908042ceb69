// ckptfs show: shows one step, file by file and tensor by tensor, or how long its ranks took to save it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/system.h"
#include "fs/cli/timing.h"
#include "io/fd.h"
#include "io/json.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct ShowArguments {
  std::string step;
  bool files_only = false;
  bool tensors_only = false;
  bool timing = false;
  bool as_json = false;
};

// Reads the list of tensors through the mount, from the step's view. So the kernel checks whether this user may read
// it, and its length has no limit.
Result<json> manifest_of(const Target& step) {
  if (step.mount.root != "/") {
    return Error(EXDEV, step.mount.mountpoint + ": only a part of the mount is bound here, without its views");
  }
  const std::string path = step.mount.mountpoint + "/views" + step.path + "/manifest.json";
  TRY_ASSIGN(const std::string text, io::read_file(path));
  const io::JsonBounds bounds{.bytes = text.size(), .values = io::kAnyNumber, .text = text.size()};
  auto manifest = io::parse_json(text, bounds);
  if (!manifest) return Error(EBADMSG, path + ": " + manifest.error().message() + "; report this");
  return manifest;
}

uint64_t bytes_of(const json& tensor) {
  uint64_t bytes = 0;
  for (const json& piece : tensor.value("pieces", json::array())) bytes += piece.at(2).get<uint64_t>();
  return bytes;
}

std::string shape_of(const json& tensor) {
  std::string text;
  for (const json& side : tensor.value("shape", json::array())) text += (text.empty() ? "" : ", ") + side.dump();
  return "[" + text + "]";
}

// All states of one parameter.
struct Row {
  std::string ds_id, shape;
  std::set<std::string> dtypes, states;
  uint64_t bytes = 0;
};

std::string tensors_table(const json& tensors) {
  using Align = Table::Align;
  std::vector<std::string> order;
  std::map<std::string, Row> rows;
  for (const json& tensor : tensors) {
    const auto [known, fresh] = rows.try_emplace(tensor.value("name", ""));
    if (fresh) order.push_back(known->first);
    Row& row = known->second;
    if (tensor.contains("ds_id")) row.ds_id = tensor["ds_id"].dump();
    row.shape = shape_of(tensor);
    row.dtypes.insert(tensor.value("dtype", ""));
    row.states.insert(tensor.value("state", ""));
    row.bytes += bytes_of(tensor);
  }
  Table table({{"DS_ID", Align::right}, {"TENSOR"}, {"SHAPE"}, {"DTYPE"}, {"STATES"}, {"BYTES", Align::right}});
  for (const std::string& name : order) {
    const Row& row = rows.at(name);
    table.add({{row.ds_id},
               {name},
               {row.shape},
               {io::joined(row.dtypes)},
               {io::joined(row.states)},
               {human_size(row.bytes)}});
  }
  return table.text(stdout_is_terminal());
}

std::string files_table(const json& files) {
  using Align = Table::Align;
  Table table({{"FILE"}, {"SIZE", Align::right}, {"EXCLUSIVE", Align::right}, {"SHARED", Align::right}});
  for (const json& file : files) {
    const auto size = [&file](const char* key) { return human_size(file.value(key, uint64_t{0})); };
    table.add({{file.value("path", "")}, {size("apparent")}, {size("exclusive")}, {size("shared")}});
  }
  return table.text(stdout_is_terminal());
}

void print_line(const char* what, const std::string& text) {
  if (!text.empty()) std::printf("%-10s %s\n", what, printable(text).c_str());
}

void print_summary(const json& step) {
  const auto size = [&step](const char* key) { return human_size(step.value(key, uint64_t{0})); };
  const std::string reason = step.value("reason", "");
  std::string by;
  for (const json& rule : step.value("by", json::array())) by += (by.empty() ? "" : ", ") + rule.get<std::string>();
  const uint64_t number = step.value("number", uint64_t{0}), ranks = step.value("ranks", uint64_t{0});
  std::printf("%s\n", printable(step.value("series", "") + "/" + step.value("tag", "")).c_str());
  print_line("state", step.value("state", "") + (reason.empty() ? "" : ": " + reason));
  print_line("kind", step.value("kind", "") + (ranks == 0 ? "" : ", " + counted(ranks, "rank")));
  print_line("number", number == 0 ? "" : std::to_string(number));
  print_line("age", human_age(std::time(nullptr) - step.value("mtime", int64_t{0})));
  print_line("size", size("bytes") + ": " + size("exclusive") + " exclusive, " + size("shared") + " shared");
  print_line(step.value("stays", true) ? "kept by" : "goes", by);
}

void print_tensors(const json& answer) {
  const json tensors = answer.value("tensors", json::array());
  if (!tensors.empty()) std::printf("\n%s", tensors_table(tensors).c_str());
  if (tensors.empty() && answer.value("why_no_tensors", "").empty()) {
    std::printf("\nNothing in it tells which tensors it holds.\n");
  }
  for (const json& tied : answer.value("tied", json::array())) {
    std::printf("%s\n", printable(tied.value("name", "") + " is " + tied.value("same_as", "")).c_str());
  }
  print_line("\nnames from", answer.value("names_from", ""));
  for (const json& problem : answer.value("problems", json::array())) {
    const std::string file = problem.value("file", "");
    const std::string text = (file.empty() ? "" : file + ": ") + problem.value("reason", "");
    std::fprintf(stderr, "ckptfs: warning: %s\n", printable(text).c_str());
  }
}

// Adds the tensors without their pieces, which manifest.json has.
void add_tensors(json& answer, json manifest) {
  for (json& tensor : manifest["tensors"]) {
    tensor["bytes"] = bytes_of(tensor);
  }
  for (const char* key : {"tensors", "tied", "problems", "names_from"}) {
    if (manifest.contains(key)) answer[key] = std::move(manifest[key]);
  }
}

Result<json> inspect(const ShowArguments& arguments) {
  TRY_ASSIGN(const Target target, find_target(arguments.step));
  TRY_ASSIGN(json answer, ask_and_wait(target.mount, "looking at the step", "show", {{"path", target.path}}));
  if (arguments.files_only) return answer;
  auto manifest = manifest_of(target);
  if (manifest) {
    add_tensors(answer, std::move(manifest).value());
  } else {
    answer["why_no_tensors"] = manifest.error().message();
  }
  return answer;
}

void print(const json& answer, const ShowArguments& arguments) {
  print_summary(answer["step"]);
  if (!arguments.tensors_only) std::printf("\n%s", files_table(answer["files"]).c_str());
  if (!arguments.files_only) print_tensors(answer);
}

// Needs no daemon: the times are in the step.
int run_timing(const ShowArguments& arguments) {
  const auto timing = timing_of(arguments.step);
  if (!timing) return fail(timing.error());
  print_answer(arguments.as_json, timing.value(), [&] { std::printf("%s", timing_table(timing.value()).c_str()); });
  for (const json& rank : timing.value()["untimed"]) {
    std::fprintf(stderr, "ckptfs: warning: rank %s left no times\n", rank.dump().c_str());
  }
  return kSuccess;
}

int run(const ShowArguments& arguments) {
  if (arguments.timing) return run_timing(arguments);
  const auto answer = inspect(arguments);
  if (!answer) return fail(arguments.step, answer.error());
  print_answer(arguments.as_json, answer.value(), [&] { print(answer.value(), arguments); });
  const std::string unseen = answer.value().value("why_no_tensors", "");
  return unseen.empty() ? static_cast<int>(kSuccess) : fail(Error(EIO, "its tensors are not shown: " + unseen));
}

}  // namespace

void add_show(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<ShowArguments>();
  CLI::App* command = app.add_subcommand("show", "Show one step: its files, and its tensors by ds_id and name");
  command->add_option("STEP", arguments->step, "A step")->required();
  auto* files = command->add_flag("--files", arguments->files_only, "Only its files");
  auto* tensors = command->add_flag("--tensors", arguments->tensors_only, "Only its tensors")->excludes(files);
  command->add_flag("--timing", arguments->timing, "How long its ranks took to save it, the slowest one marked")
      ->excludes(files)
      ->excludes(tensors);
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "Tensors are those of /ckpt/views. The view's manifest.json says which bytes of which files they are.\n"
      "Times are those that libckptfs leaves in a step that it saves; such a step may lie in any folder.\n"
      "Example:\n  ckptfs show /ckpt/steps/global_step100\n  ckptfs show --timing /ckpt/steps/step_100\n  ckptfs show "
      "--json --tensors /ckpt/steps/global_step100");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

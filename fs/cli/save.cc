// ckptfs save: a point-in-time clone of the live swap files into a step.
#include <CLI/CLI.hpp>
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

struct SaveArguments {
  std::string tag;
  std::string mountpoint;
  std::string series;
  bool as_json = false;
};

// --series is a path on this machine, or one from the mount's root ("/runs/a", "steps").
Result<Target> find_series(const SaveArguments& arguments) {
  const std::optional<std::string> mountpoint =
      arguments.mountpoint.empty() ? std::nullopt : std::optional(arguments.mountpoint);
  if (!arguments.series.empty()) {
    if (auto target = find_target(arguments.series)) {
      if (!mountpoint) return target;
      TRY_ASSIGN(const Target named, find_target(mountpoint));
      if (named.mount.id == target.value().mount.id) return target;
      return Error(EINVAL, arguments.series + ": is not on the mount " + named.mount.mountpoint);
    }
  }
  TRY_ASSIGN(Target target, find_target(mountpoint));
  if (mountpoint && target.path != target.mount.root) {
    return Error(EINVAL, *mountpoint + ": is no mountpoint; to save into another series: --series " + *mountpoint);
  }
  const std::string series = arguments.series.empty() ? "/steps" : arguments.series;
  target.path = series.starts_with("/") ? series : "/" + series;
  return target;
}

std::string sentence(const json& result, const std::string& tag, const std::string& series) {
  const auto files = result.value("files", uint64_t{0});
  const auto cloned = result.value("cloned", uint64_t{0});
  const std::string name = printable(series + "/" + tag);
  const std::string what = counted(files, "swap file") + ", " + human_size(result.value("bytes", uint64_t{0}));
  if (result.value("already_saved", false)) {
    return name + " was saved before, and nothing has changed since (" + what + ").";
  }
  return "Saved " + name + ": " + what + " (" + std::to_string(cloned) + " cloned, " +
         std::to_string(files - std::min(cloned, files)) + " shared with an earlier save) in " +
         human_duration(result.value("seconds", 0.0)) + ", durable.\n" +
         "This is the swap state only: what DeepSpeed keeps in memory is written by its own save_checkpoint.";
}

int run(const SaveArguments& arguments) {
  auto target = find_series(arguments);
  if (!target) return fail(target.error());
  const json request = {{"series", target.value().path}, {"tag", arguments.tag}};
  auto result = ask_and_wait(target.value().mount, "saving", "save", request);
  if (!result) return fail(target.value().mount.mountpoint, result.error());
  return print_answer(arguments.as_json, result.value(), [&] {
    std::printf("%s\n", sentence(result.value(), arguments.tag, target.value().path).c_str());
    for (const json& warning : result.value().value("warnings", json::array())) {
      std::fprintf(stderr, "ckptfs: warning: %s\n", printable(warning.get<std::string>()).c_str());
    }
  });
}

}  // namespace

void add_save(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<SaveArguments>();
  CLI::App* command = app.add_subcommand("save", "Save the live swap files into a step");
  command->add_option("TAG", arguments->tag, "The step's name")->required();
  command->add_option("MOUNTPOINT", arguments->mountpoint, "The mount (default: the only one)");
  command->add_option("--series", arguments->series, "The series to save into (default: steps)");
  command->add_flag("--json", arguments->as_json, "Print the result as JSON");
  command->footer(
      "Returns when the step is durable. It holds the swap state only. Save between training steps, from one rank.\n"
      "Example:\n  ckptfs save global_step100\n  ckptfs save --series /ckpt/runs/a before-lr-change /ckpt");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

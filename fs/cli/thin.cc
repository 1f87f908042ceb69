// ckptfs thin: of steps only the weights stay.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/format.h"
#include "fs/cli/path_command.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct ThinArguments : StepsArguments {
  std::string to = "same";
  bool dry_run = false;
};

std::string files_of(const json& files) {
  uint64_t bytes = 0;
  for (const json& file : files) bytes += file.value("size", uint64_t{0});
  return counted(files.size(), "file") + " (" + human_size(bytes) + ")";
}

// "/steps/global_step100: bf16 weights in 1 file (1.2 GiB) stay, 14 files (10.8 GiB) go; frees 9.6 GiB of 10.8 GiB"
void print_thinned(const json& step) {
  const bool done = !step.value("dry_run", false);
  std::printf("%s: %s weights in %s stay, %s %s; %s %s of %s\n", printable(step.value("step", "")).c_str(),
              step.value("type", "").c_str(), files_of(step.value("kept", json::array())).c_str(),
              files_of(step.value("went", json::array())).c_str(), done ? "went" : "would go",
              done ? "freed" : "would free about", human_size(step.value("freed", uint64_t{0})).c_str(),
              human_size(step.value("exclusive_before", uint64_t{0})).c_str());
}

int run(const ThinArguments& arguments) {
  const auto thin = [&arguments](const std::string& step) -> Result<json> {
    TRY_ASSIGN(const Target target, find_target(step));
    return ask_and_wait(target.mount, "thinning", "thin",
                        {{"path", target.path}, {"to", arguments.to}, {"dry_run", arguments.dry_run}});
  };
  return for_each_step(arguments, "thinned", thin, print_thinned);
}

}  // namespace

void add_thin(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<ThinArguments>();
  CLI::App* command = app.add_subcommand("thin", "Keep the weights of steps, and remove what only a resume needs");
  command->add_option("STEP", arguments->steps, "A step of a series")->required();
  command
      ->add_option("--to", arguments->to, "The type of the weights that stay; same: the one that the model computes in")
      ->check(CLI::IsMember({"same", "bf16", "fp16", "fp32"}))
      ->capture_default_str();
  command->add_flag("--dry-run", arguments->dry_run, "Change nothing, and say what would go");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "What stays is what the step's view shows as model.*, as model.safetensors, and every file that is not known to\n"
      "be for a resume. ckptfs-thinned.json in the step tells what went. No training can resume from it any more.\n"
      "These steps are refused, each with the reason:\n"
      "- one that is not complete, that cannot be judged, or of which nothing tells what its weights are\n"
      "- one that holds only weights\n"
      "- one that is pinned, in use, or not pushed yet (hold_unpushed)\n"
      "- the newest complete step: of all, of those that a training saved here, and of each run that goes on\n"
      "- if the newest is being saved again, also the one before it\n"
      "- one that a tracker file (`latest`, ...) names, or may name and cannot be read\n"
      "- the best_model_checkpoint, which a Trainer loads at its end\n"
      "Example:\n  ckptfs thin --dry-run /ckpt/runs/my-model/checkpoint-10\n"
      "  ckptfs thin --to bf16 /ckpt/runs/my-model/checkpoint-10");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

// ckptfs latest: names the step that a training goes on from.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
#include "fs/cli/step_states.h"
#include "fs/cli/system.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

// The last of the steps, which is the newest by its number, and what it lacks.
std::string why_none(const json& steps) {
  if (steps.empty()) return "there is no step yet";
  const json& last = steps.back();
  return "no step is complete; the newest, " + last.value("tag", "") + ", is " + state_and_reason(last);
}

Result<json> find_latest(const Target& target) {
  TRY_ASSIGN(const json answer, ask_states(target));
  const json& newest = answer.at("newest");
  if (newest.size() > 1) {
    std::string names;
    for (const auto& [series, tag] : newest.items()) {
      names += (names.empty() ? "" : ", ") + io::path_outside(target.mount, series);
    }
    return Error(EINVAL, "several series have steps; name one: " + names);
  }
  for (const json& step : answer.at("steps")) {
    if (step.value("tag", "") == newest.value(step.value("series", ""), "")) return step;
  }
  return Error(ENOENT, why_none(answer.at("steps")));
}

Result<int> print_latest(const Target& target, const char* field, bool as_json) {
  TRY_ASSIGN(const json latest, find_latest(target));
  if (latest.value("kind", "") == meta::kSwapStateOnly) {
    std::fprintf(
        stderr,
        "ckptfs: %s holds swap state only, and no step with more is complete: DeepSpeed cannot resume from it alone\n",
        printable(latest.value("tag", "")).c_str());
  }
  return print_answer(as_json, latest, [&] { std::printf("%s\n", latest.value(field, "").c_str()); });
}

}  // namespace

void add_latest(CLI::App& app, Chosen& chosen) {
  add_path_command(
      app, chosen,
      {"latest", "Name the newest complete step of a series", "SERIES",
       "A series (default: the only one of the only mount)",
       "It is the complete step that a training saved last, not one that was copied in since. If no rule is set on "
       "the\n"
       "series, nobody knows who saved; then it is the one with the highest number. Damaged steps, those of which "
       "only\n"
       "the weights are left, and those of other users, except for the series' owner, are never named. A step of\n"
       "`ckptfs save` alone is named only if no other is complete; a line on stderr says so.\n"
       "Exits with 1, and says why, if no step is complete. --json prints what `state` prints.\n"
       "Example:\n  ckptfs latest /ckpt/steps\n"
       "  python train.py --resume_from_checkpoint \"$(ckptfs latest --path /ckpt/runs/my-model)\"",
       [](const Target& target, bool as_json) { return print_latest(target, "tag", as_json); },
       PathCommand::Flag{"--path", "Print the step's path, not its tag",
                         [](const Target& target, bool as_json) { return print_latest(target, "path", as_json); }}});
}

}  // namespace ckptfs::fs::cli

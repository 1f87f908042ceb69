// ckptfs push: sends a step to the remote of its series now.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "fs/cli/client.h"
#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
#include "fs/cli/progress.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kLook{200};
constexpr int kSilentLooks = 25;  // so long nobody needs to be told why nothing happens

struct PushArguments : StepsArguments {
  bool wait = false;
  bool again = false;
};

// With what else is "pushing".
Result<json> state_of(const Target& target) {
  TRY_ASSIGN(const json status, ask_daemon(target.mount, "remote_status", {{"path", target.path}}));
  for (const json& remote : status.value("remotes", json::array())) {
    for (json step : remote.value("steps", json::array())) {
      step["pushing"] = remote.value("pushing", "");
      return step;
    }
  }
  return Error(ENOENT, "it is no step there any more: it was removed or renamed");
}

// What stands in its way, or comes before it; empty: nothing that is worth a word.
std::string words_of(const json& state, int looks) {
  std::string error = state.value("error", ""), waits_for = state.value("waits_for", "");
  if (!error.empty()) return error;
  if (!waits_for.empty() || state.value("stage", "") != "unpushed" || looks < kSilentLooks) return waits_for;
  const std::string pushing = state.value("pushing", "");
  return pushing.empty() ? "the mount has not come to it yet" : pushing + " is pushed first";
}

// Until it is committed, or is refused. What fails meanwhile is tried again by the daemon, and told once.
Result<json> wait_for(const Target& target) {
  Progress progress("pushing " + target.path);
  std::string told;
  for (int looks = 0;; ++looks) {
    TRY_ASSIGN(json state, state_of(target));
    const std::string stage = state.value("stage", "");
    if (stage == "committed") return state;
    if (stage == "refused") return Error(EINVAL, state.value("error", ""));
    const std::string words = words_of(state, looks);
    if (!words.empty() && words != told) {
      std::fprintf(stderr, "ckptfs: %s: %s; waiting\n", printable(target.path).c_str(), printable(words).c_str());
      told = words;
    }
    progress.show(state.value("sent", uint64_t{0}) + state.value("copied", uint64_t{0}),
                  state.value("bytes", uint64_t{0}));
    std::this_thread::sleep_for(kLook);
  }
}

Result<json> push(const std::string& step, bool wait, bool again) {
  TRY_ASSIGN(const Target target, find_target(step));
  TRY_ASSIGN(json pushed, ask_daemon(target.mount, "push", {{"path", target.path}, {"again", again}}));
  if (!wait) return pushed;
  TRY_ASSIGN(json state, wait_for(target));
  state["step"] = target.path;
  return state;
}

int run(const PushArguments& arguments) {
  const bool wait = arguments.wait, again = arguments.again;
  const auto print = [wait](const json& pushed) {
    const std::string state = wait ? pushed.value("state", "") : "is pushed next";
    std::printf("%s: %s\n", printable(pushed.value("step", "")).c_str(), printable(state).c_str());
  };
  return for_each_step(
      arguments, "pushed", [wait, again](const std::string& step) { return push(step, wait, again); }, print);
}

}  // namespace

void add_push(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<PushArguments>();
  CLI::App* command = app.add_subcommand("push", "Send steps to the remote of their series now");
  command->add_option("STEP", arguments->steps, "A step of a series that has a remote")->required();
  command->add_flag("--wait", arguments->wait, "Return when the steps are committed there, or cannot be");
  command->add_flag("--again", arguments->again, "Commit the step again, with the notes that were added since");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "A series with a remote is pushed anyhow, unless its rule `push` is `manual`. This sends a step at once, before\n"
      "all others, without waiting until it is quiet.\n"
      "A pushed step keeps what its save wrote: results of an evaluation that come later are sent with --again only.\n"
      "Example:\n  ckptfs push /ckpt/steps/global_step200\n  ckptfs push --wait /ckpt/steps/global_step200\n"
      "  ckptfs push --again --wait /ckpt/steps/global_step200");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

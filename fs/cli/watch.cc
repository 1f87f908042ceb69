// ckptfs watch: prints what happens to steps, as it happens.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/step_states.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kBetweenQuestions{250};

struct WatchArguments {
  std::string series;
  std::optional<uint64_t> since;
  bool as_json = false;
};

// "2026-11-29 06:00:00Z /ckpt/steps/global_step5 set_aside: incomplete-global_step5"
std::string line_of(const json& event) {
  const std::string detail = event.value("detail", "");
  return utc_time(static_cast<int64_t>(event.value("time", 0.0))) + " " + printable(event.value("path", "")) + " " +
         event.value("event", "") + (detail.empty() ? "" : ": " + printable(detail));
}

// False: nobody reads the lines any more.
bool print_events(const Target& target, json& answer, bool as_json) {
  if (const uint64_t lost = answer.value("lost", uint64_t{0}); lost != 0) {
    std::fprintf(
        stderr, "ckptfs: %llu events before number %llu are kept no more; `ckptfs ls` shows what is there\n",
        static_cast<unsigned long long>(lost),
        static_cast<unsigned long long>(answer.at("events").empty() ? answer.value("since", uint64_t{0})
                                                                    : answer.at("events")[0].value("number", 0)));
  }
  add_paths(answer.at("events"), target.mount);
  for (const json& event : answer.at("events")) {
    const std::string line = as_json ? event.dump(-1, ' ', false, json::error_handler_t::replace) : line_of(event);
    std::printf("%s\n", line.c_str());
  }
  return std::fflush(stdout) == 0;
}

// Of a series without rules nobody knows when a step begins or is complete.
Result<> tell_without_rules(const Target& target) {
  if (target.path == "/") return success();
  TRY_ASSIGN(const json policy, ask_daemon(target.mount, "policy", {{"path", target.path}}));
  if (policy.at("set").empty()) {
    std::fprintf(stderr, "ckptfs: no rule is set on %s: `began` and `completed` are not told; ckptfs policy sets one\n",
                 printable(io::path_outside(target.mount, target.path)).c_str());
  }
  return success();
}

Result<> watch(const Target& target, const WatchArguments& arguments) {
  json question = {{"path", target.path}};
  if (arguments.since) question["since"] = *arguments.since;
  ToldOnce told;
  TRY(tell_without_rules(target));
  while (true) {
    auto answer = ask_daemon(target.mount, "events", question);
    if (answer) {
      if (!print_events(target, answer.value(), arguments.as_json)) return success();
      const bool more = question.contains("since") && question["since"] != answer.value().at("since");
      question["since"] = answer.value().at("since");
      if (more) continue;
    } else if (!may_pass(answer.error())) {
      return answer.error();
    } else {
      told.tell(answer.error());
    }
    std::this_thread::sleep_for(kBetweenQuestions);
  }
}

int run(const WatchArguments& arguments) {
  const auto target = find_target(arguments.series.empty() ? std::nullopt : std::optional(arguments.series));
  if (!target) return fail(target.error());
  const auto watched = watch(target.value(), arguments);
  return watched ? kSuccess : fail(io::path_outside(target.value().mount, target.value().path), watched.error());
}

}  // namespace

void add_watch(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<WatchArguments>();
  CLI::App* command = app.add_subcommand("watch", "Print what happens to steps, as it happens");
  command->add_option("SERIES", arguments->series, "A series (default: all of the only mount)");
  command->add_option("--since", arguments->since,
                      "Begin behind the event of this number (default: with the next one)");
  command->add_flag("--json", arguments->as_json, "Print each event as a line of JSON, with its number");
  command->footer(
      "Events: began, completed, set_aside, renamed, thinned, pushed, removed. Those of began and completed need a "
      "rule\n"
      "on the series (ckptfs policy). Goes on while the mount is started anew. `--since` with the number of the last\n"
      "event that you have seen misses none and repeats none, also after a crash; the store keeps the last 131,072.\n"
      "Ends when nobody reads its output any more.\n"
      "Example:\n  ckptfs watch\n"
      "  ckptfs watch /ckpt/runs/my-model --json --since 0");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli

// ckptfs remote check, latest and ls: what a remote is, and which steps it has. All of it comes from lists and a
// few small objects.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fs/cli/format.h"
#include "fs/cli/progress.h"
#include "fs/cli/remote_commands.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/remote_reading.h"
#include "fs/cli/system.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_rules.h"

namespace ckptfs::fs::cli {
namespace {

using meta::remote::CommittedStep;
using meta::remote::RemoteFacts;
using nlohmann::json;

std::string age_of(const CommittedStep& step) { return human_age(std::time(nullptr) - seconds_of(step.committed)); }

json json_of(const CommittedStep& step) {
  return {{"step", step.name()}, {"tag", step.decision.tag}, {"committed", seconds_of(step.committed)}};
}

// --- check

struct CheckArguments {
  RemoteOptions options;
};
struct Checked {
  std::optional<RemoteFacts> facts;
  std::vector<CommittedStep> steps;
};

Result<Checked> look_at(const Remote& remote) {
  const Waiting waiting("trying the remote");
  TRY(meta::remote::probe_store(*remote.store, limits_of(remote)));
  Checked checked;
  auto facts = meta::remote::read_facts(*remote.store, limits_of(remote));
  if (!facts && facts.error().errno_value() != ENOENT) return facts.error();
  if (facts) checked.facts = facts.value();
  TRY_ASSIGN(checked.steps, standing_steps(remote));
  if (!facts && !checked.steps.empty()) {
    return Error(EPROTO, fmt::format("{}: it has steps, but {} is gone: bring that object back from a copy or an older "
                                     "version of it",
                                     remote.store->url(), meta::remote::kFactsKey));
  }
  return checked;
}

json json_of(const Checked& checked, const std::string& url) {
  json result = {{"url", url}, {"fit", true}, {"founded", checked.facts.has_value()}, {"steps", checked.steps.size()}};
  if (checked.facts) {
    result.update({{"id", checked.facts->id},
                   {"slots", checked.facts->slots},
                   {"host", checked.facts->host},
                   {"made", checked.facts->made}});
  }
  const auto newest = meta::remote::newest(checked.steps);
  result["newest"] = newest ? json(newest->name()) : json();
  return result;
}

void print_checked(const Checked& checked, const std::string& url) {
  std::printf("%s: fit as a remote: it makes an object once only, honours ranges, and lists what it has\n",
              printable(url).c_str());
  if (!checked.facts) {
    std::printf("No series is pushed there yet. To begin: ckptfs remote add %s SERIES\n", printable(url).c_str());
    return;
  }
  std::printf("a remote of %s, made by %s at %s, id %s\n", counted(checked.facts->slots, "slot").c_str(),
              printable(checked.facts->host).c_str(), printable(checked.facts->made).c_str(),
              printable(checked.facts->id).c_str());
  if (const auto newest = meta::remote::newest(checked.steps)) {
    std::printf("%s, the newest is %s, committed %s ago\n", counted(checked.steps.size(), "step").c_str(),
                printable(newest->name()).c_str(), age_of(*newest).c_str());
  } else {
    std::printf("no step is committed there yet\n");
  }
}

Result<int> run_check(const CheckArguments& arguments) {
  TRY_ASSIGN(const Remote remote, open_remote(arguments.options.url, arguments.options));
  TRY_ASSIGN(const Checked checked, look_at(remote));
  const std::string& url = remote.store->url();
  return print_answer(arguments.options.as_json, json_of(checked, url), [&] { print_checked(checked, url); });
}

// --- latest

struct LatestArguments {
  RemoteOptions options;
  bool path = false;  // where its files lie, for other tools
};

Result<CommittedStep> newest_there(const Remote& remote) {
  TRY_ASSIGN(const auto steps, standing_steps(remote));
  if (const auto newest = meta::remote::newest(steps)) return *newest;
  return Error(ENOENT, remote.store->url() + ": no step is committed there (`ckptfs remote check` tells more)");
}

// Of each slot, the place that its files have in common.
Result<std::vector<std::string>> places_of(const Remote& remote, const CommittedStep& step) {
  TRY_ASSIGN(const auto commit, meta::remote::fetch_commit(*remote.store, step.decision, limits_of(remote)));
  const auto slots = static_cast<uint32_t>(commit.parts.size());
  std::vector<std::string> places;
  for (const auto& part : commit.parts) {
    places.push_back(remote.store->url() + "/" + meta::remote::file_key(part.push, slots, ""));
    places.back().pop_back();  // the slash
  }
  return places;
}

Result<int> run_latest(const LatestArguments& arguments) {
  TRY_ASSIGN(const Remote remote, open_remote(arguments.options.url, arguments.options));
  const Waiting waiting("asking for the newest step");
  TRY_ASSIGN(const CommittedStep newest, newest_there(remote));
  json answer = json_of(newest);
  std::vector<std::string> lines{newest.name()};
  if (arguments.path) {
    TRY_ASSIGN(lines, places_of(remote, newest));
    answer["paths"] = lines;
  }
  return print_answer(arguments.options.as_json, answer, [&] {
    for (const std::string& line : lines) std::printf("%s\n", printable(line).c_str());
  });
}

// --- ls

struct ListArguments {
  RemoteOptions options;
  bool all = false;  // also those that were removed
};

struct Listed {
  std::vector<CommittedStep> steps;
  std::set<std::string> pins;
};

Result<Listed> list_remote(const Remote& remote, bool all) {
  const Waiting waiting("listing the steps");
  Listed listed;
  TRY_ASSIGN(listed.steps, all ? meta::remote::list_steps(*remote.store, limits_of(remote)) : standing_steps(remote));
  TRY_ASSIGN(const auto rules, meta::remote::read_rules(*remote.store, limits_of(remote)));
  listed.pins = rules.rules.pins;
  return listed;
}

std::string mark_of(const CommittedStep& step, const Listed& listed) {
  if (step.gone) return "removed";
  return listed.pins.contains(step.decision.text()) ? "pinned" : "";
}

void print_steps_of_remote(const Listed& listed, const std::string& url) {
  if (listed.steps.empty()) {
    std::printf("%s: no step is committed there\n", printable(url).c_str());
    return;
  }
  Table table({{"STEP"}, {"COMMITTED"}, {"AGE", Table::Align::right}, {""}});
  for (const CommittedStep& step : listed.steps) {
    table.add({{step.name()}, {utc_time(seconds_of(step.committed))}, {age_of(step)}, {mark_of(step, listed)}});
  }
  std::printf("%s: %s\n%s", printable(url).c_str(), counted(listed.steps.size(), "step").c_str(),
              table.text(stdout_is_terminal()).c_str());
}

Result<int> run_remote_ls(const ListArguments& arguments) {
  TRY_ASSIGN(const Remote remote, open_remote(arguments.options.url, arguments.options));
  TRY_ASSIGN(const Listed listed, list_remote(remote, arguments.all));
  json list = json::array();
  for (const CommittedStep& step : listed.steps) {
    json one = json_of(step);
    one["pinned"] = listed.pins.contains(step.decision.text());
    if (arguments.all) one["removed"] = step.gone;
    list.push_back(std::move(one));
  }
  const std::string& url = remote.store->url();
  return print_answer(arguments.options.as_json, {{"url", url}, {"steps", std::move(list)}},
                      [&] { print_steps_of_remote(listed, url); });
}

}  // namespace

void add_remote_check(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command = group.add_subcommand("check", "Try whether a store is fit as a remote, and say what is there");
  add_remote_options(*command, arguments->options, "URL", "s3://BUCKET/PREFIX or file:///FOLDER");
  command->footer(
      "It makes a small object, tries to make it again, reads a part of it, lists it, and removes it. So it needs\n"
      "the rights of a push, but for multipart uploads, which it does not try. Exits with 1 if the store is not fit or "
      "does not answer, and says what to do.\n"
      "Example:\n  ckptfs remote check file:///lustre/run7\n"
      "  ckptfs remote check s3://bucket/run7 --endpoint https://s3.example.com:8333");
  choose(*command, chosen, arguments, run_check);
}

void add_remote_latest(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<LatestArguments>();
  CLI::App* command = group.add_subcommand("latest", "Print the name of the newest committed step, and nothing else");
  add_remote_options(*command, arguments->options, "URL", "s3://BUCKET/PREFIX or file:///FOLDER");
  command->add_flag("--path", arguments->path,
                    "Print where its files lie instead, for other tools; a line for each slot");
  command->footer(
      "Exits with 1, and prints nothing but a reason on stderr, if there is no step or it cannot be known.\n"
      "A launcher asks once and passes the answer on, so that all ranks take the same step.\n"
      "Example:\n  ckptfs remote latest file:///lustre/run7\n"
      "  ckptfs remote latest --path file:///lustre/run7");
  choose(*command, chosen, arguments, run_latest);
}

void add_remote_ls(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<ListArguments>();
  CLI::App* command = group.add_subcommand("ls", "List the committed steps, oldest first");
  add_remote_options(*command, arguments->options, "URL", "s3://BUCKET/PREFIX or file:///FOLDER");
  command->add_flag("--all", arguments->all, "Also those that were removed");
  command->footer(
      "A step that changed after its commit is committed again, as TAG~2: each name stands for one content.\n"
      "Example:\n  ckptfs remote ls file:///lustre/run7\n  ckptfs remote ls --json file:///lustre/run7");
  choose(*command, chosen, arguments, run_remote_ls);
}

}  // namespace ckptfs::fs::cli

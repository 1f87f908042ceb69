// ckptfs remote rm and gc: steps are removed from a remote, and what nobody needs any more is deleted there.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "fs/cli/format.h"
#include "fs/cli/progress.h"
#include "fs/cli/remote_commands.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/remote_reading.h"
#include "fs/cli/system.h"
#include "io/host.h"
#include "meta/remote/collector.h"
#include "meta/remote/commit.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_rules.h"
#include "meta/remote/tombstone.h"

namespace ckptfs::fs::cli {
namespace {

using meta::remote::CollectorReport;
using meta::remote::CommittedStep;
using meta::remote::StepAddress;
using nlohmann::json;

// --- rm

struct RemoveArguments {
  RemoteOptions options;  // its url is the first address
  std::vector<std::string> addresses;
};

// All of them in one remote.
Result<std::vector<StepAddress>> addresses_of(const RemoveArguments& arguments) {
  std::vector<StepAddress> addresses;
  for (const std::string& text : arguments.addresses) {
    TRY_ASSIGN(StepAddress address, meta::remote::split_step(text));
    if (address.slot) {
      return Error(EINVAL, text + ": a slot's part of a step cannot be removed alone; name the step: " + address.url +
                               "/" + address.step);
    }
    if (!addresses.empty() && addresses.front().url != address.url) {
      return Error(EINVAL, text + ": it lies in another remote than " + addresses.front().step + ": one at a time");
    }
    addresses.push_back(std::move(address));
  }
  return addresses;
}

Result<> refuse_to_remove(const Remote& remote, const CommittedStep& step, const std::vector<CommittedStep>& steps,
                          const meta::remote::RemoteRules& rules) {
  const std::string name = remote.store->url() + "/" + step.name();
  if (step.gone) return Error(ENOENT, name + " was removed already");
  if (rules.pins.contains(step.decision.text())) {
    return Error(EPERM, name + " is pinned. To remove it: ckptfs remote pin --off " + name + ", then again");
  }
  const auto latest = meta::remote::newest(steps);
  if (latest && latest->decision == step.decision) {
    return Error(EPERM, name +
                            " is the newest step there, which always stays. To give up all of the remote, delete "
                            "its folder or prefix with the tools of the store");
  }
  return success();
}

// Nothing is removed if one of them cannot be.
Result<std::vector<CommittedStep>> steps_to_remove(const Remote& remote, const std::vector<StepAddress>& addresses) {
  TRY(meta::remote::read_facts(*remote.store, limits_of(remote)));
  TRY_ASSIGN(const auto rules, meta::remote::read_rules(*remote.store, limits_of(remote)));
  TRY_ASSIGN(const auto steps, meta::remote::list_steps(*remote.store, limits_of(remote)));
  std::vector<CommittedStep> found;
  for (const StepAddress& address : addresses) {
    const auto step = std::ranges::find(steps, address.step, &CommittedStep::name);
    if (step == steps.end()) {
      return Error(ENOENT, remote.store->url() + ": there is no committed step " + address.step +
                               "; `ckptfs remote ls` lists them");
    }
    TRY(refuse_to_remove(remote, *step, steps, rules.rules));
    found.push_back(*step);
  }
  return found;
}

Result<int> run_remote_rm(const RemoveArguments& arguments) {
  TRY_ASSIGN(const auto addresses, addresses_of(arguments));
  TRY_ASSIGN(const Remote remote, open_remote(addresses.front().url, arguments.options));
  end_in_order();
  json removed = json::array();
  {
    const Waiting waiting("removing");
    TRY_ASSIGN(const auto steps, steps_to_remove(remote, addresses));
    for (const CommittedStep& step : steps) {
      TRY(meta::remote::remove_step(*remote.store, step, io::host_name(), "by hand", limits_of(remote)));
      removed.push_back(step.name());
    }
  }
  return print_answer(arguments.options.as_json, {{"url", remote.store->url()}, {"removed", removed}}, [&] {
    for (const json& step : removed) std::printf("%s: removed\n", printable(step.get<std::string>()).c_str());
    std::printf(
        "Whoever has a step open there can read it for another day. Then the mount of slot 0 deletes its files, or:\n"
        "ckptfs remote gc %s\n",
        printable(remote.store->url()).c_str());
  });
}

// --- gc

struct CollectArguments {
  RemoteOptions options;
  bool dry_run = false;
};

struct Collected {
  CollectorReport report;
  bool dry_run = false;
};

Result<Collected> collect_there(const Remote& remote, const CollectArguments& arguments) {
  TRY(meta::remote::read_facts(*remote.store, limits_of(remote)));
  Progress line("looking");
  meta::remote::CollectorSettings settings;
  settings.host = io::host_name();
  settings.time = remote.time;
  settings.dry_run = arguments.dry_run;
  settings.stop = limits_of(remote).stop;
  settings.progress = [&line](const auto& progress) { line.show_count(progress.what, progress.objects); };
  auto report = meta::remote::collect(*remote.store, settings);
  TRY(report);
  return Collected{std::move(report).value(), arguments.dry_run};
}

json amount_json(const CollectorReport::Amount& amount) {
  return {{"objects", amount.objects}, {"bytes", amount.bytes}};
}

json collected_json(const Collected& collected, const Remote& remote) {
  const CollectorReport& report = collected.report;
  json removed = json::array(), ended = json::array(), committed = json::array();
  for (const auto& one : report.removed) removed.push_back({{"step", one.step.name()}, {"why", one.why}});
  for (const auto& push : report.ended) ended.push_back(push.text());
  for (const auto& decision : report.committed) committed.push_back(decision.text());
  return {
      {"url", remote.store->url()},
      {"dry_run", collected.dry_run},
      {"time", seconds_of(report.now)},
      {"objects", report.objects},
      {"bytes", report.bytes},
      {"removed", std::move(removed)},
      {"ended", std::move(ended)},
      {"committed", std::move(committed)},
      {"deleted", amount_json(report.deleted)},
      {"waiting", amount_json(report.waiting)},
      {"waiting_until", report.waiting.objects == 0 ? json() : json(seconds_of(report.now + meta::remote::a_day()))},
      {"uploads", report.uploads},
      {"warnings", report.warnings},
      {"requests", cost_of(remote.store->counts())}};
}

std::string amount_text(const CollectorReport::Amount& amount) {
  return counted(amount.objects, "object") + ", " + human_size(amount.bytes);
}

void print_collected(const Collected& collected, const Remote& remote) {
  const CollectorReport& report = collected.report;
  const char* const would = collected.dry_run ? "would be " : "";
  std::printf("%s: %s\n", printable(remote.store->url()).c_str(), amount_text({report.objects, report.bytes}).c_str());
  for (const auto& one : report.removed) {
    std::printf("%sremoved %s: %s\n", would, printable(one.step.name()).c_str(), printable(one.why).c_str());
  }
  for (const auto& push : report.ended) {
    std::printf("%sended %s: nothing has come of this push for a week\n", would, printable(push.text()).c_str());
  }
  for (const auto& decision : report.committed) {
    std::printf("%scommitted %s: all its parts are there\n", would, printable(decision.tag).c_str());
  }
  std::printf("%sdeleted: %s\n", would, amount_text(report.deleted).c_str());
  if (report.waiting.objects > 0) {
    std::printf("waits: %s; a run from %s on deletes it\n", amount_text(report.waiting).c_str(),
                utc_time(seconds_of(report.now + meta::remote::a_day())).c_str());
  }
  if (report.uploads > 0) {
    std::printf("ended: %s, to which nothing has come for a week\n", counted(report.uploads, "upload").c_str());
  }
  for (const std::string& warning : report.warnings) {
    std::fprintf(stderr, "ckptfs: warning: %s\n", printable(warning).c_str());
  }
  print_cost(remote.store->counts());
}

Result<int> run_gc(const CollectArguments& arguments) {
  TRY_ASSIGN(const Remote remote, open_remote(arguments.options.url, arguments.options));
  end_in_order();
  TRY_ASSIGN(const Collected collected, collect_there(remote, arguments));
  return print_answer(arguments.options.as_json, collected_json(collected, remote),
                      [&] { print_collected(collected, remote); });
}

}  // namespace

void add_remote_rm(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<RemoveArguments>();
  CLI::App* command = group.add_subcommand("rm", "Remove steps from a remote");
  command->add_option("URL/TAG", arguments->addresses, "Steps of one remote: its address and the step's name")
      ->required();
  add_request_options(*command, arguments->options);
  command->footer(
      "It does not ask. The newest step and a pinned one are refused. A mount that still has the step does not push "
      "it\n"
      "again, unless it changes or `ckptfs push` asks for it. Space comes back after a day.\n"
      "Example:\n  ckptfs remote rm file:///lustre/run7/global_step100");
  command->callback([arguments, &chosen] {
    arguments->options.url = arguments->addresses.front();
    chosen = [arguments] {
      const auto code = run_remote_rm(*arguments);
      return code ? code.value() : fail_remote(arguments->options.url, code.error());
    };
  });
}

void add_remote_gc(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<CollectArguments>();
  CLI::App* command =
      group.add_subcommand("gc", "Carry out the rules of a remote, and delete what no step needs any more");
  add_remote_options(*command, arguments->options, "URL", "s3://BUCKET/PREFIX or file:///FOLDER");
  command->add_flag("--dry-run", arguments->dry_run, "Show what would be done, and change nothing");
  command->footer(
      "The mount of slot 0 does it daily; by hand, or by cron without a mount, it may run on any machine, several "
      "times\n"
      "at once. What was removed is deleted a day later. A step that lacks files there counts for no rule, and none\n"
      "removes it.\n"
      "Example:\n  ckptfs remote gc --dry-run file:///lustre/run7\n  ckptfs remote gc file:///lustre/run7");
  choose(*command, chosen, arguments, run_gc);
}

}  // namespace ckptfs::fs::cli

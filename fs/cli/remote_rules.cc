// ckptfs remote policy and pin: which steps of a remote stay.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "fs/cli/format.h"
#include "fs/cli/progress.h"
#include "fs/cli/remote_commands.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/remote_reading.h"
#include "fs/cli/system.h"
#include "io/host.h"
#include "io/text.h"
#include "meta/remote/collector.h"
#include "meta/remote/commit.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_rules.h"

namespace ckptfs::fs::cli {
namespace {

using meta::remote::CommittedStep;
using meta::remote::NumberedRules;
using meta::remote::RemoteRules;
using meta::remote::RuleDecision;
using meta::remote::StepAddress;
using nlohmann::json;
using Time = std::chrono::system_clock::time_point;

// --- policy

struct RemotePolicyArguments {
  RemoteOptions options;
  std::vector<std::string> set;    // RULE=VALUE
  std::vector<std::string> unset;  // RULE
  bool dry_run = false;
};

using RuleChanges = std::map<std::string, std::string>;  // an empty value takes the rule away

Result<RuleChanges> rule_changes_of(const RemotePolicyArguments& arguments) {
  RuleChanges changes;
  for (const std::string& rule : arguments.unset) changes[rule] = "";
  for (const std::string& text : arguments.set) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      return Error(EINVAL, "--set " + text + ": it takes RULE=VALUE, as in keep_last=20");
    }
    changes[text.substr(0, equals)] = text.substr(equals + 1);
  }
  RemoteRules tried;
  for (const auto& [rule, value] : changes) TRY(meta::remote::set_rule(tried, rule, value));
  return changes;
}

Result<> apply_changes(RemoteRules& rules, const RuleChanges& changes) {
  for (const auto& [rule, value] : changes) TRY(meta::remote::set_rule(rules, rule, value));
  return success();
}

struct PolicyReport {
  NumberedRules rules;
  std::vector<CommittedStep> steps;  // that stand
  std::vector<RuleDecision> decisions;
  std::optional<meta::remote::LastCollection> collected;
};

Result<PolicyReport> look_at_policy(const Remote& remote, const RuleChanges& changes, bool dry_run) {
  const Waiting waiting("looking at the steps");
  const auto change = [&](RemoteRules& rules) { return apply_changes(rules, changes); };
  TRY(meta::remote::read_facts(*remote.store, limits_of(remote)));
  PolicyReport report;
  if (changes.empty() || dry_run) {
    TRY_ASSIGN(report.rules, meta::remote::read_rules(*remote.store, limits_of(remote)));
    TRY(change(report.rules.rules));
  } else {
    TRY_ASSIGN(report.rules, meta::remote::change_rules(*remote.store, io::host_name(), change, limits_of(remote)));
  }
  TRY_ASSIGN(report.steps, standing_steps(remote));
  report.decisions = meta::remote::decide_by_rules(report.rules.rules, report.steps, std::chrono::system_clock::now());
  TRY_ASSIGN(report.collected, meta::remote::last_collection(*remote.store, limits_of(remote)));
  return report;
}

std::string rules_text(const RemoteRules& rules) {
  std::string text;
  for (const auto& [rule, value] : meta::remote::texts_of(rules))
    text += (text.empty() ? "" : " ") + rule + "=" + value;
  return text.empty() ? "none: every step stays" : text;
}

// Those that stand.
std::set<std::string> pins_of(const PolicyReport& report) {
  std::set<std::string> pins;
  for (const CommittedStep& step : report.steps) {
    if (report.rules.rules.pins.contains(step.decision.text())) pins.insert(step.name());
  }
  return pins;
}

json policy_json(const PolicyReport& report, const std::string& url) {
  json steps = json::array();
  for (size_t at = 0; at < report.steps.size(); ++at) {
    const RuleDecision& decision = report.decisions[at];
    steps.push_back({{"step", report.steps[at].name()},
                     {"committed", seconds_of(report.steps[at].committed)},
                     {"stays", decision.stays},
                     {"why", decision.why},
                     {"until", decision.until ? json(seconds_of(*decision.until)) : json()}});
  }
  const auto& last = report.collected;
  const json collected = last ? json{{"time", seconds_of(last->when)}, {"host", last->host}} : json();
  return {{"url", url},
          {"rules", meta::remote::texts_of(report.rules.rules)},
          {"pins", pins_of(report)},
          {"set_by", report.rules.n == 0 ? json() : json(report.rules.host)},
          {"collected", collected},
          {"steps", std::move(steps)}};
}

std::string policy_table(const PolicyReport& report) {
  Table table({{"STEP"}, {"COMMITTED"}, {"AGE", Table::Align::right}, {"VERDICT"}, {"WHY"}});
  const int64_t now = std::time(nullptr);
  for (size_t at = 0; at < report.steps.size(); ++at) {
    const RuleDecision& decision = report.decisions[at];
    const int64_t committed = seconds_of(report.steps[at].committed);
    const std::string until = decision.until ? "stays until " + utc_time(seconds_of(*decision.until)) : "stays";
    table.add({{report.steps[at].name()},
               {utc_time(committed)},
               {human_age(now - committed)},
               {decision.stays ? until : "goes", decision.stays ? Colour::green : Colour::red},
               {decision.stays ? decision.why : "no rule keeps it"}});
  }
  return table.text(stdout_is_terminal());
}

// What happens, and who does it.
void print_outlook(const PolicyReport& report, const std::string& url, bool dry_run) {
  uint64_t going = 0;
  for (const RuleDecision& decision : report.decisions) going += decision.stays ? 0 : 1;
  const std::string steps = counted(going, "step");
  if (dry_run) {
    std::printf("With these rules %s would go at the next run of the collector. Nothing was changed.\n", steps.c_str());
  } else if (going > 0) {
    std::printf("%s will be removed: the mount of slot 0 carries the rules out daily, or: ckptfs remote gc %s\n",
                steps.c_str(), printable(url).c_str());
  }
}

void print_policy_of_remote(const PolicyReport& report, const std::string& url, bool dry_run) {
  const std::string by = report.rules.n == 0 || dry_run ? "" : " (set on " + report.rules.host + ")";
  std::printf("%s: %s\nrules: %s%s\n", printable(url).c_str(), counted(report.steps.size(), "step").c_str(),
              rules_text(report.rules.rules).c_str(), printable(by).c_str());
  const std::string pins = io::joined(pins_of(report));
  if (!pins.empty()) std::printf("pinned: %s\n", printable(pins).c_str());
  if (report.collected) {
    std::printf("The collector ran last %s ago, on %s.\n",
                human_age(std::time(nullptr) - seconds_of(report.collected->when)).c_str(),
                printable(report.collected->host).c_str());
  } else {
    std::printf("The collector has not run yet: the mount of slot 0 runs it daily, or: ckptfs remote gc %s\n",
                printable(url).c_str());
  }
  if (!report.steps.empty()) std::printf("\n%s\n", policy_table(report).c_str());
  print_outlook(report, url, dry_run);
}

Result<int> run_remote_policy(const RemotePolicyArguments& arguments) {
  TRY_ASSIGN(const RuleChanges changes, rule_changes_of(arguments));
  TRY_ASSIGN(const Remote remote, open_remote(arguments.options.url, arguments.options));
  const bool dry_run = arguments.dry_run;
  TRY_ASSIGN(const PolicyReport report, look_at_policy(remote, changes, dry_run));
  const std::string& url = remote.store->url();
  return print_answer(arguments.options.as_json, policy_json(report, url),
                      [&] { print_policy_of_remote(report, url, dry_run); });
}

// --- pin

struct PinArguments {
  RemoteOptions options;
  bool off = false;
};

// The collector may have read the rules before the pin was set.
Result<> pin_step(const Remote& remote, const std::string& name) {
  TRY_ASSIGN(const CommittedStep step, find_standing(remote, name));
  const auto add = [&](RemoteRules& rules) -> Result<> {
    rules.pins.insert(step.decision.text());
    return success();
  };
  TRY(meta::remote::change_rules(*remote.store, io::host_name(), add, limits_of(remote)));
  TRY(find_standing(remote, name));
  return success();
}

Result<> unpin_step(const Remote& remote, const std::string& name) {
  TRY_ASSIGN(const CommittedStep step, meta::remote::find_step(*remote.store, name, limits_of(remote)));
  const auto take = [&](RemoteRules& rules) -> Result<> {
    if (rules.pins.erase(step.decision.text()) == 1) return success();
    return Error(ENOENT, remote.store->url() + ": " + name + " is not pinned; `ckptfs remote policy` shows what is");
  };
  TRY(meta::remote::change_rules(*remote.store, io::host_name(), take, limits_of(remote)));
  return success();
}

Result<int> run_pin(const PinArguments& arguments) {
  TRY_ASSIGN(const StepAddress address, meta::remote::split_step(arguments.options.url));
  TRY_ASSIGN(const Remote remote, open_remote(address.url, arguments.options));
  {
    const Waiting waiting("changing the rules");
    TRY(arguments.off ? unpin_step(remote, address.step) : pin_step(remote, address.step));
  }
  const json answer = {{"url", remote.store->url()}, {"step", address.step}, {"pinned", !arguments.off}};
  return print_answer(arguments.options.as_json, answer, [&] {
    std::printf("%s: %s\n", printable(address.step).c_str(),
                arguments.off ? "no longer pinned: the rules decide" : "pinned: no rule and no `rm` removes it");
  });
}

}  // namespace

void add_remote_policy(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<RemotePolicyArguments>();
  CLI::App* command = group.add_subcommand("policy", "Which steps of a remote stay, and by which rule");
  add_remote_options(*command, arguments->options, "URL", "s3://BUCKET/PREFIX or file:///FOLDER");
  command->add_option("--set", arguments->set, "Set a rule: RULE=VALUE; may be repeated")->allow_extra_args(false);
  command->add_option("--unset", arguments->unset, "Take a rule away; may be repeated")->allow_extra_args(false);
  command->add_flag("--dry-run", arguments->dry_run, "Show what these rules would do, and set none");
  command->footer(
      "Rules: keep_last=N, keep_every=N, keep_for=30d. A step stays if any rule keeps it, or none is set; the newest\n"
      "one and a pinned one always do. The rules lie in the remote: all machines know the same ones. The mount of\n"
      "slot 0 carries them out daily, or `ckptfs remote gc` on any machine.\n"
      "Example:\n  ckptfs remote policy file:///lustre/run7\n"
      "  ckptfs remote policy file:///lustre/run7 --set keep_last=20 --set keep_every=1000 --dry-run");
  choose(*command, chosen, arguments, run_remote_policy);
}

void add_remote_pin(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<PinArguments>();
  CLI::App* command = group.add_subcommand("pin", "Keep a step of a remote, whatever its rules say");
  add_remote_options(*command, arguments->options, "URL/TAG", "The remote's address and the step's name");
  command->add_flag("--off", arguments->off, "The step is pinned no longer");
  command->footer(
      "Example:\n  ckptfs remote pin file:///lustre/run7/global_step100\n"
      "  ckptfs remote pin --off file:///lustre/run7/global_step100");
  choose(*command, chosen, arguments, run_pin);
}

}  // namespace ckptfs::fs::cli

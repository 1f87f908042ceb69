#include "fs/control/policy_commands.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "fs/open/walk.h"
#include "fs/ops/filesystem.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

int64_t seconds_of(meta::WallTime time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

// Only the steps that `who` may list: nobody else is told what is in a step, and what it lacks.
json to_json(const meta::Tree& tree, const Credentials& who, const std::string& series, const SeriesJudgement& found,
             const meta::PolicyText& rules) {
  json steps = json::array(), others = json::array();
  for (size_t at = 0; at < found.status.steps.size(); ++at) {
    const auto record = tree.inode(found.status.steps[at].inode);
    if (record && !may_access(who, record.value(), kRead | kSearch)) continue;
    steps.push_back(judged_step(found.status.steps[at], found.judgement.decisions[at]));
  }
  for (const NoStep& other : found.status.others) others.push_back({{"name", other.name}, {"reason", other.reason}});
  return {{"series", series},
          {"set", rules},
          {"armed", found.policy.armed},
          {"is_armed", found.policy.armed == rules && found.policy.armed_by == found.policy.set_by},
          {"steps", std::move(steps)},
          {"others", std::move(others)},
          {"warnings", found.judgement.warnings}};
}

Result<json> policy(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.value("path", "/steps");
  const auto changes = arguments.value("set", meta::PolicyText());
  const bool sets = !changes.empty() && !arguments.value("dry_run", false);
  TRY_ASSIGN(const meta::InodeNumber series,
             resolve_as(fs.tree, peer.credentials, path, sets ? kRead | kSearch | kWrite : kRead | kSearch));
  TRY(meta::check_series(fs.tree, series));
  if (sets) {
    TRY(fs.check_writable());
    TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(series));
    TRY(meta::check_sticky(fs.tree, peer.credentials, series, record.uid));
    TRY(meta::set_rules(fs.store, series, changes, peer.credentials));
    TRY(fs.set_aside.read_rule(series));
    fs.look_again();
  }
  TRY_ASSIGN(const meta::SeriesPolicy known, meta::policy_of(fs.store, series));
  meta::PolicyText rules = known.set;
  meta::RuleSetters setters = known.set_by;
  for (const auto& [rule, value] : changes) {
    setters[rule] = peer.credentials;
    if (value.empty()) {
      rules.erase(rule);
    } else {
      rules[rule] = value;
    }
  }
  TRY_ASSIGN(const SeriesJudgement found, fs.rotation.preview(series, Rules{rules, std::move(setters)}));
  return to_json(fs.tree, peer.credentials, fs.tree.path_of(series), found, rules);
}

// The step at `path`, if the caller could remove it by hand.
Result<meta::InodeNumber> removable_step(const Filesystem& fs, const Peer& peer, const std::string& path,
                                         const std::string& instead) {
  TRY_ASSIGN(const meta::InodeNumber step, resolve_as(fs.tree, peer.credentials, path, 0));
  TRY_ASSIGN(const bool is_step, meta::is_step(fs.tree, step));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(step));
  TRY_ASSIGN(const meta::InodeRecord above, fs.tree.inode(step == meta::kRootInode ? step : record.parent));
  if (!is_step || (above.flags & meta::kSeries) == 0) {
    return Error(EINVAL, path + ": it is no step of a series; " + instead);
  }
  TRY(reach_as(fs.tree, peer.credentials, record.parent, kWrite | kSearch));
  TRY(meta::check_removal(fs.tree, peer.credentials, step));
  return step;
}

Result<json> remove(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.at("path").get<std::string>();
  TRY_ASSIGN(const meta::InodeNumber step, removable_step(fs, peer, path, "`rm -r` removes any directory"));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(step));
  const std::string full = fs.tree.path_of(step);
  TRY(fs.removals.remove(record.parent, meta::name_of(fs.tree, step), step, "ckptfs rm"));
  // When the command returns, the step is gone for the kernel, too.
  fs.notifications.wait_until_told(std::chrono::seconds(2));
  return json{{"removed", full}};
}

json to_json(const std::vector<meta::formats::ThinnedFile>& files) {
  json rows = json::array();
  for (const auto& file : files) rows.push_back({{"name", file.name}, {"size", file.size}, {"digest", file.digest}});
  return rows;
}

Result<json> thin(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.at("path").get<std::string>();
  const std::string type = arguments.value("to", "same");
  const bool dry_run = arguments.value("dry_run", false);
  if (!meta::parse_policy({{"thin_to", type}}))
    return Error(EINVAL, "'" + type + "' is no type for it; choose same, bf16, fp16 or fp32");
  TRY_ASSIGN(const meta::InodeNumber step, removable_step(fs, peer, path, "`ckptfs ls` lists them"));
  TRY(resolve_as(fs.tree, peer.credentials, path, kRead | kSearch | kWrite));
  const auto thinned = fs.thinner.thin(step, type, peer.credentials.uid, dry_run, [](auto) { return true; });
  if (!thinned) return Error(thinned.error().errno_value(), path + " stays as it is: " + thinned.error().message());
  fs.notifications.wait_until_told(std::chrono::seconds(2));
  const ThinReport& report = thinned.value();
  return json{
      {"step", report.step},   {"from", report.manifest.from},          {"type", report.manifest.type},
      {"dry_run", dry_run},    {"exclusive_before", report.before},     {"exclusive_after", report.after},
      {"freed", report.freed}, {"kept", to_json(report.manifest.kept)}, {"went", to_json(report.manifest.went)}};
}

}  // namespace

json judged_step(const StepStatus& step, const meta::Decision& decision) {
  json by = json::array();
  for (const meta::Reason reason : decision.reasons) by.push_back(meta::name_of(reason));
  json row = {{"tag", step.facts.tag},
              {"number", step.facts.number},
              {"state", state_of(step)},
              {"reason", step.reason},
              {"ranks", step.ranks},
              {"completed", seconds_of(step.facts.completed)},
              {"owner", step.facts.owner},
              {"metric", step.facts.metric ? json(*step.facts.metric) : json()},
              {"stays", decision.stays},
              {"thins", decision.thins},
              {"full_because", decision.full_because},
              {"by", std::move(by)}};
  if (!step.failed) row.update(json{{"files", step.files}, {"bytes", step.bytes}});
  return row;
}

void add_policy_commands(ControlServer& server, Filesystem& fs) {
  server.add("policy", ControlServer::Pace::slow, fs, policy);
  server.add("rm", ControlServer::Pace::slow, fs, remove);
  server.add("thin", ControlServer::Pace::slow, fs, thin);
}

}  // namespace ckptfs::fs

#include "fs/control/remote_commands.h"

#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "fs/open/walk.h"
#include "fs/ops/filesystem.h"
#include "meta/names.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

// The daemon asks the remote with its own credentials, so no other user tells it where.
Result<> refuse_others(const Peer& peer) {
  if (peer.credentials.uid == 0 || peer.credentials.uid == ::geteuid()) return success();
  return Error(EPERM, "only who mounted it gives a series a remote, since the daemon's credentials are used there");
}

Result<meta::InodeNumber> series_at(const Filesystem& fs, const Peer& peer, const std::string& path) {
  TRY_ASSIGN(const meta::InodeNumber series, resolve_as(fs.tree, peer.credentials, path, kRead | kSearch));
  TRY(meta::check_series(fs.tree, series));
  return series;
}

Result<json> give_remote(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.at("series").get<std::string>();
  TRY(refuse_others(peer));
  TRY_ASSIGN(const meta::InodeNumber series, series_at(fs, peer, path));
  TRY_ASSIGN(const RemoteSettings settings, remote_settings_from(arguments));
  const bool take_over = arguments.value("take_over", false);
  TRY_ASSIGN(const meta::remote::RemoteFacts facts, fs.remotes.add(series, settings, take_over));
  return json{{"series", fs.tree.path_of(series)},
              {"url", settings.url},
              {"slot", settings.slot},
              {"id", facts.id},
              {"slots", facts.slots},
              {"made", facts.made},
              {"host", facts.host}};
}

Result<json> take_remote(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.at("series").get<std::string>();
  TRY(refuse_others(peer));
  TRY_ASSIGN(const meta::InodeNumber series, series_at(fs, peer, path));
  TRY(fs.remotes.remove(series));
  return json{{"series", fs.tree.path_of(series)}};
}

json collection_json(const CollectionReport& report) {
  const json last = report.last ? json(std::chrono::system_clock::to_time_t(*report.last)) : json();
  return {{"runs", report.runs},
          {"failures", report.failures},
          {"trouble", report.trouble},
          {"failing_seconds", report.failing.count()},
          {"last", last},
          {"removed", report.removed},
          {"ended", report.ended},
          {"deleted", report.deleted},
          {"deleted_bytes", report.deleted_bytes},
          {"waiting", report.waiting},
          {"waiting_bytes", report.waiting_bytes},
          {"warnings", report.warnings},
          {"puts", report.puts},
          {"gets", report.gets},
          {"lists", report.lists},
          {"removes", report.removes}};
}

json report_json(const RemoteReport& report) {
  json row = to_json(report.settings);
  row.update({{"id", report.id},
              {"push", report.manual ? "manual" : "quiet"},
              {"trouble", report.trouble},
              {"pushing", report.pushing},
              {"pushed", report.pushed},
              {"committed", report.committed},
              {"failures", report.failures},
              {"sent", report.sent},
              {"copied", report.copied},
              {"puts", report.puts},
              {"gets", report.gets},
              {"lists", report.lists},
              {"retries", report.retries},
              {"bytes_per_second", report.bytes_per_second},
              {"stalled_seconds", report.stalled.count()},
              {"collector", report.collection ? collection_json(*report.collection) : json()},
              {"oldest_unpushed_seconds", report.oldest ? json(report.oldest->count()) : json()}});
  return row;
}

json state_json(const PushState& state, const std::string& error) {
  return {{"tag", state.tag},         {"stage", name_of(state.stage)}, {"state", state.text()}, {"name", state.name},
          {"missing", state.missing}, {"waits_for", state.waits_for},  {"error", error},        {"bytes", state.bytes},
          {"sent", state.sent},       {"copied", state.copied},        {"notes", state.notes}};
}

json steps_of(const Filesystem& fs, const Peer& peer, meta::InodeNumber series, meta::InodeNumber only) {
  std::map<std::string, json> by_tag;
  for (const auto& [step, state] : fs.pushes.all(series)) {
    if (only != 0 && step != only) continue;
    const auto record = fs.tree.inode(step);
    if (!record || !may_access(peer.credentials, record.value(), kRead | kSearch)) continue;
    by_tag[state.tag] = state_json(state, fs.remotes.error_of(series, state));
  }
  json steps = json::array();
  for (auto& [tag, step] : by_tag) steps.push_back(std::move(step));
  return steps;
}

Result<json> remote_status(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.value("path", "/");
  TRY_ASSIGN(const meta::InodeNumber at, resolve_as(fs.tree, peer.credentials, path, kRead | kSearch));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(at));
  json remotes = json::array();
  for (const auto& [series, report] : fs.remotes.reports()) {
    const bool whole = at == series || at == meta::kRootInode, step = record.parent == series;
    const std::string name = fs.tree.path_of(series);
    if ((!whole && !step) || !resolve_as(fs.tree, peer.credentials, name, kRead | kSearch)) continue;
    json one = report_json(report);
    one["series"] = name;
    one["steps"] = steps_of(fs, peer, series, whole ? 0 : at);
    remotes.push_back(std::move(one));
  }
  if (remotes.empty() && at != meta::kRootInode) {
    return Error(ENOENT, path + ": no series with a remote; `ckptfs remote add URL SERIES` gives it one");
  }
  return json{{"remotes", std::move(remotes)}};
}

// Why there is nothing of it to push, in words; empty: it is a step.
Result<std::string> why_no_step(const Filesystem& fs, meta::InodeNumber step) {
  const std::string name = meta::name_of(fs.tree, step);
  if (meta::is_partial_name(name)) return std::string("it is an attempt to save a step that was not committed");
  if (meta::is_set_aside_name(name)) {
    return std::string("it was set aside as incomplete; to push it all the same, give it back its step's name");
  }
  TRY_ASSIGN(const auto known, fs.store.index().find_step(step));
  if (known && known->being_removed) return std::string("it is being removed");
  TRY_ASSIGN(const bool is_step, meta::is_step(fs.tree, step, name));
  if (is_step) return std::string();
  if (meta::step_number(name)) return std::string("it holds nothing yet: there is nothing to push");
  return std::string("it has no step's name, as checkpoint-100, global_step100 or step_100: there is nothing to push");
}

Result<json> push_step(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.at("path").get<std::string>();
  TRY_ASSIGN(const meta::InodeNumber step, resolve_as(fs.tree, peer.credentials, path, kRead | kSearch | kWrite));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(step));
  TRY_ASSIGN(const meta::InodeRecord above, fs.tree.inode(record.parent));
  if (!record.is_dir() || (above.flags & meta::kSeries) == 0) {
    return Error(EINVAL, path + ": it is no step of a series; `ckptfs ls` lists them");
  }
  TRY_ASSIGN(const std::string why, why_no_step(fs, step));
  if (fs.pushes.has_remote(record.parent) && !why.empty()) return Error(EINVAL, path + ": " + why);
  TRY(fs.remotes.push(record.parent, step, arguments.value("again", false)));
  return json{{"step", fs.tree.path_of(step)}};
}

}  // namespace

json remotes_of(const Filesystem& fs) {
  json remotes = json::array();
  for (const auto& [series, report] : fs.remotes.reports()) {
    json one = report_json(report);
    one["series"] = fs.tree.path_of(series);
    remotes.push_back(std::move(one));
  }
  return remotes;
}

void add_remote_commands(ControlServer& server, Filesystem& fs) {
  server.add("remote_add", ControlServer::Pace::slow, fs, give_remote);
  server.add("remote_remove", ControlServer::Pace::slow, fs, take_remote);
  server.add("remote_status", ControlServer::Pace::slow, fs, remote_status);
  server.add("push", ControlServer::Pace::slow, fs, push_step);
}

}  // namespace ckptfs::fs

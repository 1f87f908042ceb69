#include "fs/control/commands.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "fs/control/policy_commands.h"
#include "fs/control/status.h"
#include "fs/open/walk.h"
#include "fs/ops/filesystem.h"
#include "meta/accounting/accounting.h"
#include "meta/steps/save.h"
#include "meta/steps/source.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

json to_json(const meta::StepInfo& step) {
  return {{"series", step.series},
          {"tag", step.tag},
          {"kind", step.kind},
          {"state", step.record.being_removed ? "being removed" : "unknown"},
          {"mtime", step.mtime.tv_sec},
          {"saved", step.record.source != 0 ? json(step.record.saved.tv_sec) : json()},
          {"sealed", step.record.sealed},
          {"pinned", step.record.pinned},
          {"perhaps_stale", split(step.record.stale, '\n')}};
}

// The steps at `path`, which is a series or a step.
Result<std::vector<meta::StepInfo>> steps_at(meta::Store& store, meta::InodeNumber inode, const std::string& path) {
  TRY_ASSIGN(const meta::InodeRecord record, store.tree().inode(inode));
  if ((record.flags & meta::kSeries) != 0) return meta::list_steps(store, inode);
  if (!record.is_dir()) return Error(ENOTDIR, path + ": is no directory; name a series (/steps) or a step");
  TRY_ASSIGN(const meta::InodeRecord parent, store.tree().inode(record.parent));
  if ((parent.flags & meta::kSeries) != 0) {
    TRY_ASSIGN(auto steps, meta::list_steps(store, record.parent));
    std::erase_if(steps, [&](const meta::StepInfo& step) { return step.inode != inode; });
    if (!steps.empty()) return steps;
  }
  return Error(EINVAL, path + ": neither a series nor a step; `ckptfs ls` without a path lists all");
}

// Takes out the steps that `who` may not list. Only a user who may list a step is told what is in it, and how much.
void erase_unreadable(const meta::Tree& tree, const Credentials& who, std::vector<meta::StepInfo>& steps) {
  std::erase_if(steps, [&](const meta::StepInfo& step) {
    const auto record = tree.inode(step.inode);
    return record && !may_access(who, record.value(), kRead | kSearch);
  });
}

json to_json(const meta::Usage& usage) {
  return {{"apparent", usage.apparent}, {"exclusive", usage.exclusive}, {"shared", usage.shared}};
}

// What rotation knows of each series of these steps.
Result<std::map<std::string, SeriesJudgement>> judge_series(const meta::Tree& tree, Rotation& rotation,
                                                            const std::vector<meta::StepInfo>& steps) {
  std::map<std::string, SeriesJudgement> found;
  for (const meta::StepInfo& step : steps) {
    if (found.contains(step.series)) continue;
    const auto number = tree.resolve(step.series);
    if (!number) continue;  // removed meanwhile
    TRY_ASSIGN(auto judgement, none_if_gone(rotation.preview(number.value(), std::nullopt)));
    if (judgement) found.emplace(step.series, std::move(*judgement));
  }
  return found;
}

// Of each step, by its inode.
std::map<meta::InodeNumber, json> judged_steps(const std::map<std::string, SeriesJudgement>& series) {
  std::map<meta::InodeNumber, json> found;
  for (const auto& [path, one] : series) {
    for (size_t at = 0; at < one.status.steps.size(); ++at) {
      const StepStatus& status = one.status.steps[at];
      found[status.inode] = judged_step(status, one.judgement.decisions[at]);
    }
  }
  return found;
}

// The steps at `path`, and what each costs on the disk. Also what everything else costs, for the whole mount.
struct Survey {
  std::vector<meta::StepInfo> steps;
  std::vector<std::string> series;  // the first groups of the account; the swap folders and the rest are the next two
  meta::Account account;
};

Result<Survey> survey(meta::Store& store, const Peer& peer, const std::string& path) {
  Survey found;
  TRY_ASSIGN(found.steps, visible_steps(store, peer, path));
  std::vector<meta::AskedOwner> owners;
  for (const meta::StepInfo& step : found.steps) {
    if (found.series.empty() || found.series.back() != step.series) found.series.push_back(step.series);
    owners.push_back({{step.inode}, found.series.size() - 1});
  }
  TRY_ASSIGN(auto swap_folders, meta::list_swap_folders(store.tree()));
  owners.push_back({std::move(swap_folders), found.series.size()});
  owners.push_back({{meta::kRootInode}, found.series.size() + 1});
  TRY_ASSIGN(found.account, store.accounting().account(owners));
  return found;
}

// One row for each step. A step that is removed meanwhile has a row without what rotation knows.
Result<json> step_rows(const meta::Tree& tree, Rotation& rotation, const PushStates& pushes, const Survey& survey) {
  TRY_ASSIGN(const auto series, judge_series(tree, rotation, survey.steps));
  const auto known = judged_steps(series);
  json rows = json::array();
  for (size_t at = 0; at < survey.steps.size(); ++at) {
    json row = to_json(survey.steps[at]);
    row.update(to_json(survey.account.owners[at]));
    if (const auto more = known.find(survey.steps[at].inode); more != known.end()) {
      row.update(more->second);
    }
    if (const auto parent = tree.inode(survey.steps[at].inode); parent && pushes.has_remote(parent.value().parent)) {
      row["remote"] = pushes.of(survey.steps[at].inode).value_or(PushState()).text();
    }
    if (!row.contains("files")) {
      const auto count = meta::count_files(tree, survey.steps[at].inode);
      if (count) row.update(json{{"files", count.value().files}, {"bytes", count.value().bytes}});
      if (!count) row["reason"] = "its files cannot be counted: " + count.error().message();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// The cost of each series' steps together, and of everything else.
json totals(const Survey& survey) {
  json together = json::object();
  for (size_t i = 0; i < survey.series.size(); ++i) together[survey.series[i]] = to_json(survey.account.groups[i]);
  return json{{"series", std::move(together)},
              {"live", to_json(survey.account.groups[survey.series.size()])},
              {"rest", to_json(survey.account.groups[survey.series.size() + 1])},
              {"nobody", to_json(survey.account.nobody)},
              {"all", survey.account.all}};
}

Result<json> list(Filesystem& fs, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const Survey found, survey(fs.store, peer, arguments.value("path", "/")));
  TRY_ASSIGN(json rows, step_rows(fs.tree, fs.rotation, fs.pushes, found));
  return json{{"steps", std::move(rows)}};
}

// Of the steps that `user` may list.
std::optional<std::string> newest_for(const SeriesStatus& series, const std::set<meta::InodeNumber>& visible,
                                      uint32_t user) {
  std::vector<meta::StepFacts> steps;
  for (const StepStatus& step : series.steps) {
    if (!step.damaged && visible.contains(step.inode)) steps.push_back(step.facts);
  }
  const auto newest = meta::newest_to_resume(steps, user, series.owner);
  return newest ? std::optional(steps[*newest].tag) : std::nullopt;
}

// A folder in which there may be steps one day.
Result<bool> is_no_series_yet(const meta::Tree& tree, const Peer& peer, const std::string& path) {
  TRY_ASSIGN(const meta::InodeNumber folder, resolve_as(tree, peer.credentials, path, kRead | kSearch));
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(folder));
  TRY_ASSIGN(const bool is_step, meta::is_step(tree, folder));
  return !is_step && (record.flags & meta::kSeries) == 0 && meta::check_series(tree, folder).has_value();
}

// What programs ask for often: without what each step costs on the disk.
Result<json> states(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.value("path", "/");
  TRY_ASSIGN(const bool is_early, is_no_series_yet(fs.tree, peer, path));
  if (is_early) return json{{"steps", json::array()}, {"newest", json::object()}};
  TRY_ASSIGN(const auto steps, visible_steps(fs.store, peer, path));
  TRY_ASSIGN(const auto series, judge_series(fs.tree, fs.rotation, steps));
  const auto known = judged_steps(series);
  json rows = json::array(), newest = json::object();
  std::set<meta::InodeNumber> visible;
  std::map<std::string, uint32_t> owners;  // of the series
  for (const meta::StepInfo& step : steps) {
    visible.insert(step.inode);
    rows.push_back(to_json(step));
    if (const auto more = known.find(step.inode); more != known.end()) rows.back().update(more->second);
  }
  for (const auto& [name, one] : series) {
    newest[name] = newest_for(one.status, visible, peer.credentials.uid).value_or("");
    owners[name] = one.status.owner;
  }
  for (json& row : rows) {
    const uint32_t owner = row.value("owner", uint32_t{0});
    row["trusted"] = row.contains("owner") && (owner == peer.credentials.uid || owner == owners[row.at("series")]);
  }
  return json{{"steps", std::move(rows)}, {"newest", std::move(newest)}};
}

Result<json> disk_use(Filesystem& fs, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const Survey found, survey(fs.store, peer, arguments.value("path", "/")));
  json answer = totals(found);
  json rows = json::array();
  for (size_t i = 0; i < found.steps.size(); ++i) {
    json row = to_json(found.account.owners[i]);
    row["series"] = found.steps[i].series;
    row["tag"] = found.steps[i].tag;
    rows.push_back(std::move(row));
  }
  answer["steps"] = std::move(rows);
  return answer;
}

// Tells what `ckptfs ls` says of one step, and the cost of each of its files.
Result<json> show(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.at("path").get<std::string>();
  const meta::Tree& tree = fs.tree;
  TRY_ASSIGN(const meta::InodeNumber step, resolve_as(tree, peer.credentials, path, kRead | kSearch));
  TRY_ASSIGN(const bool is_step, meta::is_step(tree, step));
  if (!is_step) return Error(EINVAL, path + ": it is no step; `ckptfs ls` lists them");
  TRY_ASSIGN(const json listed, list(fs, peer, arguments));
  if (listed.at("steps").empty()) return Error(ENOENT, path + ": it was removed meanwhile");
  TRY_ASSIGN(const auto files, files_below(tree, peer.credentials, step, "", 0));
  std::vector<meta::AskedOwner> owners;
  for (const FoundFile& file : files) owners.push_back({{file.inode}, 0});
  TRY_ASSIGN(const meta::Account account, fs.store.accounting().account(owners));
  json rows = json::array();
  for (size_t at = 0; at < files.size(); ++at) {
    rows.push_back(to_json(account.owners[at]));
    rows.back()["path"] = files[at].path;
  }
  return json{{"step", listed.at("steps").at(0)}, {"files", std::move(rows)}};
}

// The line is a path, perhaps with more text behind ": ". Can `who` list that path?
bool names_visible_path(const meta::Tree& tree, const Credentials& who, const std::string& line) {
  constexpr int kMostTries = 16;  // a hostile name may contain ": " many times
  size_t end = line.find(": ");
  for (int i = 0; i < kMostTries; ++i, end = line.find(": ", end + 1)) {
    const std::string path = line.substr(0, end);
    const bool may_list = resolve_as(tree, who, path.substr(0, path.rfind('/')), kRead | kSearch).has_value();
    if (may_list && resolve_as(tree, who, path, 0)) return true;
    if (end == std::string::npos) break;
  }
  return false;
}

// The status without the lines about files that `who` cannot see.
json status_for(const meta::Tree& tree, const Credentials& who, json status) {
  if (who.uid == 0) return status;
  const auto keep_visible = [&](json& lines) {
    json kept = json::array();
    for (json& line : lines) {
      const auto& text = line.get_ref<const std::string&>();
      if (!text.starts_with('/') || names_visible_path(tree, who, text)) kept.push_back(std::move(line));
    }
    lines = std::move(kept);
  };
  keep_visible(status["warnings"]);
  keep_visible(status["care"]["damaged"]);
  keep_visible(status["care"]["identical"]);
  keep_visible(status["rotation"]["held"]);
  json remotes = json::array();
  for (json& remote : status["remotes"]) {
    if (resolve_as(tree, who, remote.at("series").get<std::string>(), kRead | kSearch)) {
      remotes.push_back(std::move(remote));
    }
  }
  status["remotes"] = std::move(remotes);
  return status;
}

Result<json> save(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.value("series", "/steps");
  TRY(resolve_as(fs.tree, peer.credentials, path, kWrite | kSearch));
  const std::string tag = arguments.at("tag").get<std::string>();
  TRY_ASSIGN(const meta::InodeNumber series, fs.tree.resolve(path));
  TRY_ASSIGN(const meta::SaveResult saved, fs.saver.save(series, tag, peer));
  return json{{"step", fs.tree.path_of(saved.step)},
              {"tag", tag},
              {"files", saved.files},
              {"cloned", saved.cloned},
              {"bytes", saved.bytes},
              {"seconds", saved.seconds},
              {"already_saved", saved.already_saved},
              {"warnings", saved.warnings}};
}

}  // namespace

Result<std::vector<meta::StepInfo>> visible_steps(meta::Store& store, const Peer& peer, const std::string& path) {
  const meta::Tree& tree = store.tree();
  TRY_ASSIGN(const meta::InodeNumber inode, resolve_as(tree, peer.credentials, path, kRead | kSearch));
  const bool all = inode == meta::kRootInode;
  if (!all) {
    TRY_ASSIGN(auto found, steps_at(store, inode, path));
    erase_unreadable(tree, peer.credentials, found);
    return found;
  }
  TRY_ASSIGN(auto steps, meta::list_steps(store));
  std::map<std::string, bool> readable;
  erase_unreadable(tree, peer.credentials, steps);
  std::erase_if(steps, [&](const meta::StepInfo& step) {
    auto known = readable.find(step.series);
    if (known == readable.end()) {
      const bool may = resolve_as(tree, peer.credentials, step.series, kRead | kSearch).has_value();
      known = readable.emplace(step.series, may).first;
    }
    return !known->second;
  });
  return steps;
}

Result<json> inspect_all_steps(meta::Store& store, Rotation& rotation, const PushStates& pushes) {
  const Peer root;
  TRY_ASSIGN(const Survey found, survey(store, root, "/"));
  json answer = {{"usage", totals(found)}};
  TRY_ASSIGN(answer["steps"], step_rows(store.tree(), rotation, pushes, found));
  return answer;
}

void add_commands(ControlServer& server, Filesystem& fs) {
  server.add("status", ControlServer::Pace::quick, [&fs](const Peer& peer, const json&) -> Result<json> {
    TRY(resolve_as(fs.tree, peer.credentials, "/", kRead | kSearch));
    return status_for(fs.tree, peer.credentials, status_of(fs));
  });
  server.add("ls", ControlServer::Pace::slow, fs, list);
  server.add("states", ControlServer::Pace::slow, fs, states);
  server.add("show", ControlServer::Pace::slow, fs, show);
  server.add("du", ControlServer::Pace::slow, fs, disk_use);
  server.add("save", ControlServer::Pace::slow, fs, save);
}

}  // namespace ckptfs::fs

#include "fs/control/content_commands.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "fs/control/commands.h"
#include "fs/open/walk.h"
#include "meta/care/digests.h"
#include "meta/care/step_diff.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Stops the work when the time of one request is over.
meta::Pause until(Clock::time_point end) {
  return [end](std::chrono::nanoseconds) { return Clock::now() < end; };
}
Clock::time_point end_of_request() { return Clock::now() + std::chrono::seconds(1); }

// The place where the next request goes on.
struct Position {
  std::string file;
  uint64_t at = 0;

  static Position of(const json& arguments) {
    const json from = arguments.value("from", json::object());
    return {from.value("file", ""), from.value("at", uint64_t{0})};
  }
  json to_json() const { return {{"file", file}, {"at", at}}; }
};

// The files at and below `path`, in the order of their paths. For "/": the files of all steps, without those that the
// caller may not read, which are counted in `left_out`.
Result<std::vector<FoundFile>> readable_files(meta::Store& store, const Peer& peer, const std::string& path,
                                              uint64_t& left_out) {
  const meta::Tree& tree = store.tree();
  TRY_ASSIGN(const meta::InodeNumber top, resolve_as(tree, peer.credentials, path, kRead));
  if (top != meta::kRootInode) return files_below(tree, peer.credentials, top, tree.path_of(top), kRead);
  TRY_ASSIGN(const auto steps, visible_steps(store, peer, "/"));
  std::vector<FoundFile> all;
  for (const meta::StepInfo& step : steps) {
    const std::string here = step.series + "/" + step.tag;
    TRY_ASSIGN(auto files, none_if_gone(seen_files_below(tree, peer.credentials, step.inode, here, kRead, left_out)));
    if (files) std::ranges::move(*files, std::back_inserter(all));  // none: removed meanwhile
  }
  std::ranges::sort(all, {}, &FoundFile::path);
  return all;
}

json to_json(const FoundFile& file, const meta::Verified& verified) {
  json damaged = json::array();
  for (const io::Range& range : verified.damaged)
    damaged.push_back({{"offset", range.offset}, {"length", range.length}});
  return {{"path", file.path}, {"state", meta::name_of(verified.verdict)}, {"damaged", std::move(damaged)}};
}

// The bytes to be read. A blob that several files name counts once.
uint64_t total_bytes(const meta::Tree& tree, const std::vector<FoundFile>& files) {
  uint64_t total = 0;
  std::unordered_set<meta::BlobNumber> counted;
  for (const FoundFile& file : files) {
    const auto attributes = tree.attributes(file.inode);
    if (attributes && counted.insert(file.blob).second) {
      total += static_cast<uint64_t>(attributes.value().stat.st_size);
    }
  }
  return total;
}

// `again`: an earlier file names the same blob, which has been read.
Result<meta::Verified> verify_file(meta::Store& store, const FoundFile& file, bool again, uint64_t from,
                                   const meta::Pause& pause) {
  if (!again) return meta::verify(store, file.inode, from, pause);
  TRY_ASSIGN(const meta::Verdict verdict, meta::known_verdict(store, file.inode));
  return meta::Verified{.verdict = verdict, .damaged = {}, .done = true};
}

Result<json> verify(meta::Store& store, const Peer& peer, const json& arguments) {
  uint64_t left_out = 0;
  TRY_ASSIGN(const auto files, readable_files(store, peer, arguments.value("path", "/"), left_out));
  const Position from = Position::of(arguments);
  json answer = {{"files", json::array()}, {"bytes", 0}, {"left_out", left_out}};
  if (from.file.empty()) answer["total"] = total_bytes(store.tree(), files);
  uint64_t bytes = 0;
  std::unordered_set<meta::BlobNumber> read;
  const auto end = end_of_request();
  for (const FoundFile& file : files) {
    const bool again = !read.insert(file.blob).second;
    if (file.path < from.file) continue;
    if (Clock::now() >= end) {
      answer["next"] = Position{file.path, 0}.to_json();
      break;
    }
    const uint64_t begin = file.path == from.file ? from.at : 0;
    TRY_ASSIGN(const auto verified, none_if_gone(verify_file(store, file, again, begin, until(end))));
    if (!verified) continue;  // removed meanwhile
    answer["files"].push_back(to_json(file, *verified));
    bytes += verified->bytes;
    if (verified->done) continue;
    answer["next"] = Position{file.path, verified->next}.to_json();
    break;
  }
  answer["bytes"] = bytes;
  return answer;
}

Result<json> accept(meta::Store& store, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const meta::InodeNumber top,
             resolve_as(store.tree(), peer.credentials, arguments.at("path").get<std::string>(), kRead));
  TRY_ASSIGN(const auto files,
             files_below(store.tree(), peer.credentials, top, store.tree().path_of(top), kRead | kWrite));
  json accepted = json::array();
  for (const FoundFile& file : files) {
    TRY_ASSIGN(const bool was_suspect, meta::accept_from_disk(store, file.inode));
    if (was_suspect) accepted.push_back(file.path);
  }
  return json{{"accepted", std::move(accepted)}};
}

Result<meta::InodeNumber> step_at(meta::Store& store, const Peer& peer, const std::string& path) {
  TRY_ASSIGN(const meta::InodeNumber step, resolve_as(store.tree(), peer.credentials, path, kRead | kSearch));
  TRY_ASSIGN(const meta::InodeRecord record, store.tree().inode(step));
  if (!record.is_dir()) return Error(ENOTDIR, path + ": it is no folder; name two steps");
  TRY(files_below(store.tree(), peer.credentials, step, path, kRead));  // fails if the caller may not read all of it
  return step;
}

uint64_t size_of(const meta::Tree& tree, meta::InodeNumber file) {
  const auto attributes = tree.attributes(file);
  return attributes ? static_cast<uint64_t>(attributes.value().stat.st_size) : 0;
}

json only_in_one(const meta::Tree& tree, const meta::FilePair& pair) {
  const uint64_t size = size_of(tree, pair.first ? *pair.first : *pair.second);
  return {
      {"path", pair.path}, {"change", pair.first ? "removed" : "added"}, {"bytes", size}, {"size", size}, {"read", 0}};
}

Result<json> diff(meta::Store& store, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const meta::InodeNumber first, step_at(store, peer, arguments.at("first").get<std::string>()));
  TRY_ASSIGN(const meta::InodeNumber second, step_at(store, peer, arguments.at("second").get<std::string>()));
  TRY_ASSIGN(const auto pairs, meta::pair_files(store.tree(), first, second));
  const Position from = Position::of(arguments);
  json answer = {{"files", json::array()}};
  const auto end = end_of_request();
  for (const meta::FilePair& pair : pairs) {
    if (pair.path < from.file) continue;
    if (Clock::now() >= end) {
      answer["next"] = Position{pair.path, 0}.to_json();
      break;
    }
    if (!pair.first || !pair.second) {
      answer["files"].push_back(only_in_one(store.tree(), pair));
      continue;
    }
    const uint64_t at = pair.path == from.file ? from.at : 0;
    TRY_ASSIGN(const meta::FileDiff found, meta::diff_files(store, *pair.first, *pair.second, at, until(end)));
    answer["files"].push_back({{"path", pair.path},
                               {"change", found.changed == 0 ? "same" : "changed"},
                               {"bytes", found.changed},
                               {"size", size_of(store.tree(), *pair.second)},
                               {"read", found.read}});
    if (found.done) continue;
    answer["next"] = Position{pair.path, found.next}.to_json();
    break;
  }
  return answer;
}

}  // namespace

void add_content_commands(ControlServer& server, meta::Store& store) {
  server.add("verify", ControlServer::Pace::slow, store, verify);
  server.add("accept", ControlServer::Pace::slow, store, accept);
  server.add("diff", ControlServer::Pace::slow, store, diff);
}

}  // namespace ckptfs::fs

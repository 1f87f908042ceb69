#include "fs/control/event_commands.h"

#include <map>
#include <nlohmann/json.hpp>

#include "fs/open/walk.h"
#include "fs/ops/filesystem.h"
#include "meta/tree/step_events.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

constexpr size_t kMostEvents = 1000;  // in one answer

json to_json(uint64_t number, const meta::StepEvent& event) {
  const std::chrono::duration<double> time = event.time.time_since_epoch();
  return {{"number", number},       {"time", time.count()}, {"event", meta::name_of(event.what)},
          {"series", event.series}, {"tag", event.tag},     {"detail", event.detail}};
}

// The series of `path`, "/" for all, of which the caller may see the names.
class Visible {
 public:
  Visible(const meta::Tree& tree, const Credentials& who, std::string path)
      : tree_(tree), who_(who), path_(std::move(path)) {}

  bool sees(const std::string& series) {
    if (path_ != "/" && path_ != series) return false;
    const auto [known, fresh] = may_.try_emplace(series, who_.uid == 0);
    if (fresh && !known->second) known->second = resolve_as(tree_, who_, series, kRead | kSearch).has_value();
    return known->second;
  }

 private:
  const meta::Tree& tree_;
  const Credentials& who_;
  const std::string path_;
  std::map<std::string, bool> may_;
};

Result<json> events(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.value("path", "/");
  if (path == "/") TRY(resolve_as(fs.tree, peer.credentials, path, kRead | kSearch));
  TRY_ASSIGN(const uint64_t last, fs.store.index().last_event());
  const uint64_t since = arguments.value("since", last);
  if (since > last) {
    return Error(EINVAL, "the last event of this store is number " + std::to_string(last) + ", not " +
                             std::to_string(since) + ": is it another store, or an older copy of it?");
  }
  TRY_ASSIGN(const auto found, fs.store.index().events_after(since, kMostEvents));
  if (!found.empty()) TRY(fs.tree.sync());
  const uint64_t lost = found.empty() || since + meta::kKeptEvents >= last ? 0 : found.front().first - since - 1;
  Visible visible(fs.tree, peer.credentials, path);
  json rows = json::array();
  for (const auto& [number, text] : found) {
    TRY_ASSIGN(const meta::StepEvent event, meta::decode_event(text));
    if (visible.sees(event.series)) rows.push_back(to_json(number, event));
  }
  return json{{"events", std::move(rows)}, {"since", found.empty() ? since : found.back().first}, {"lost", lost}};
}

}  // namespace

void add_event_commands(ControlServer& server, Filesystem& fs) {
  server.add("events", ControlServer::Pace::slow,
             [&fs](const Peer& peer, const json& arguments) { return events(fs, peer, arguments); });
}

}  // namespace ckptfs::fs

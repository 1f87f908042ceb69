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

// What a caller may be told: of series and steps that they may list. Of a series that is gone root alone is told.
class Visible {
 public:
  // `series`: kRootInode for all.
  Visible(const meta::Tree& tree, const Credentials& who, meta::InodeNumber series)
      : tree_(tree), who_(who), series_(series) {}

  bool sees(const meta::StepEvent& event) {
    if (series_ != meta::kRootInode && series_ != event.series) return false;
    if (who_.uid == 0) return true;
    const auto [known, fresh] = may_.try_emplace(event.series, false);
    if (fresh) known->second = reach_as(tree_, who_, event.series, kRead | kSearch).has_value();
    const auto step = tree_.inode(event.step);
    return known->second && (!step || may_access(who_, step.value(), kRead | kSearch));
  }

  // A step may have gone to a folder that not everybody may look into.
  std::string detail(const meta::StepEvent& event) const {
    const size_t slash = event.what == meta::StepEvent::What::renamed ? event.detail.rfind('/') : std::string::npos;
    if (slash == std::string::npos) return event.detail;
    return resolve_as(tree_, who_, event.detail.substr(0, slash), kRead | kSearch) ? event.detail : "";
  }

 private:
  const meta::Tree& tree_;
  const Credentials& who_;
  const meta::InodeNumber series_;
  std::map<meta::InodeNumber, bool> may_;
};

Result<json> events(Filesystem& fs, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const meta::InodeNumber series,
             resolve_as(fs.tree, peer.credentials, arguments.value("path", "/"), kRead | kSearch));
  if (series != meta::kRootInode) TRY(meta::check_series(fs.tree, series));
  TRY_ASSIGN(const uint64_t last, fs.store.index().last_event());
  const uint64_t since = arguments.value("since", last);
  if (since > last) {
    return Error(EINVAL, "the last event of this store is number " + std::to_string(last) + ", not " +
                             std::to_string(since) + ": is it another store, or an older copy of it?");
  }
  TRY_ASSIGN(const auto found, fs.store.index().events_after(since, kMostEvents));
  if (!found.empty() || !arguments.contains("since")) TRY(fs.tree.sync());
  Visible visible(fs.tree, peer.credentials, series);
  json rows = json::array();
  for (const auto& [number, text] : found) {
    TRY_ASSIGN(const meta::StepEvent event, meta::decode_event(text));
    if (!visible.sees(event)) continue;
    const std::chrono::duration<double> time = event.time.time_since_epoch();
    rows.push_back({{"number", number},
                    {"time", time.count()},
                    {"event", meta::name_of(event.what)},
                    {"series", fs.tree.path_of(event.series)},
                    {"tag", event.tag},
                    {"owner", event.owner},
                    {"detail", visible.detail(event)}});
  }
  const uint64_t lost = found.empty() ? 0 : found.front().first - since - 1;
  return json{{"events", std::move(rows)}, {"since", found.empty() ? since : found.back().first}, {"lost", lost}};
}

}  // namespace

void add_event_commands(ControlServer& server, Filesystem& fs) {
  server.add("events", ControlServer::Pace::slow, fs, events);
}

}  // namespace ckptfs::fs

#include "fs/control/page.h"

#include <ctime>

#include "fs/control/commands.h"
#include "fs/control/metrics.h"
#include "fs/control/status.h"
#include "io/log.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kGoodForAtLeast{1000};
constexpr int kGoodForFactor = 20;  // an inspection is followed by a pause of so many times its duration
constexpr std::chrono::seconds kSampling{10};

json to_json(const TakenSave& save) {
  const auto when = std::chrono::duration_cast<std::chrono::seconds>(save.when.time_since_epoch());
  return {{"step", save.step},    {"by", save.by_files ? "files" : "save"},
          {"when", when.count()}, {"seconds", std::chrono::duration<double>(save.took).count()},
          {"bytes", save.bytes},  {"error", save.error}};
}

json to_json(const MovedByRanks& ranks) {
  const auto& times = ranks.times;
  return {{"step", ranks.step},
          {"slowest", times.slowest},
          {"host", times.host},
          {"seconds", times.seconds},
          {"stages", times.longest}};
}

}  // namespace

void SpaceHistory::add(const Sample& sample) {
  if (given_++ % every_ != 0) return;
  samples_.push_back(sample);
  if (samples_.size() <= kMost) return;
  std::deque<Sample> kept;
  for (size_t at = 0; at < samples_.size(); at += 2) kept.push_back(samples_[at]);
  samples_ = std::move(kept);
  every_ *= 2;
}

void PageState::sample_space() {
  const meta::SpaceReport space = fs_.store.space();
  const io::MutexLock lock(mutex_);
  space_.add({std::time(nullptr), space.total - space.raw_free});
}

Result<json> PageState::inspect() const {
  TRY_ASSIGN(json found, inspect_all_steps(fs_.store, fs_.rotation, fs_.pushes));
  json policies = json::object();
  TRY_ASSIGN(const auto all, meta::list_series(fs_.tree));
  for (const meta::InodeNumber series : all) {
    TRY_ASSIGN(const meta::SeriesPolicy policy, meta::policy_of(fs_.store, series));
    policies[fs_.tree.path_of(series)] = {{"set", policy.set}, {"armed", policy.armed}};
  }
  found["policies"] = std::move(policies);
  found["looked"] = std::time(nullptr);
  return found;
}

json PageState::now() {
  json state;
  {
    const io::MutexLock turn(turn_);
    const auto began = Clock::now();
    if (began >= good_to_) {
      if (auto found = inspect()) {
        known_ = std::move(found).value();
      } else {  // the last state stays, with an error in it
        known_["error"] = "the steps cannot be looked at: " + found.error().message();
        log::warn("page: {}", found.error().message());
      }
      const auto ended = Clock::now();
      good_to_ = ended + std::max<Clock::duration>(kGoodForAtLeast, (ended - began) * kGoodForFactor);
    }
    state = known_;
  }
  state["now"] = std::time(nullptr);
  state["status"] = status_of(fs_);
  json saves = json::array(), space = json::array();
  for (const TakenSave& save : fs_.saves.all()) saves.push_back(to_json(save));
  {
    const io::MutexLock lock(mutex_);
    for (const auto& sample : space_.samples()) space.push_back({sample.time, sample.used});
  }
  state["saves"] = std::move(saves);
  if (const auto ranks = fs_.saves.last_by_ranks(SaveHistory::Way::saved)) state["saved_by_ranks"] = to_json(*ranks);
  if (const auto ranks = fs_.saves.last_by_ranks(SaveHistory::Way::loaded)) state["loaded_by_ranks"] = to_json(*ranks);
  state["space"] = std::move(space);
  return state;
}

void add_pages(HttpServer& server, Filesystem& fs, PageState& state) {
  using Pace = HttpServer::Pace;
  using Guard = HttpServer::Guard;
  server.add("/", Pace::quick, Guard::none, [] {
    return HttpServer::Answer{200, "text/html; charset=utf-8", std::string(kPageText)};
  });
  server.add("/metrics", Pace::quick, Guard::token, [&fs] {
    return HttpServer::Answer{200, kMetricsType, metrics_of(fs)};
  });
  server.add("/api/state", Pace::slow, Guard::token, [&state] {
    return HttpServer::Answer{200, "application/json",
                              state.now().dump(-1, ' ', false, json::error_handler_t::replace)};
  });
  server.every(kSampling, [&state] { state.sample_space(); });
}

}  // namespace ckptfs::fs

#include "fs/remote/remotes.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "io/host.h"
#include "io/log.h"
#include "io/objects/open_object_store.h"
#include "meta/remote/slot_owner.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::fs {
namespace {

constexpr std::chrono::seconds kProbeTime{30};

// Of journals and nameless files: only the daemon's user has business there.
Result<> make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return success();
  return last_error(folder);
}

}  // namespace

Result<> Remotes::start() {
  {
    const io::MutexLock lock(mutex_);
    stopped_ = false;
  }
  TRY_ASSIGN(const auto all, meta::list_series(env_.store.tree()));
  for (const meta::InodeNumber series : all) {
    const auto settings = remote_of(env_.store, series);
    const auto started = settings && settings.value() ? start_pusher(series, *settings.value())
                         : settings                   ? Result<>(success())
                                                      : Result<>(settings.error());
    if (!started) {
      states_.add_series(series, settings && settings.value() ? settings.value()->slots : 1);  // nothing is pushed
      log::error("{}: its remote: {}", env_.store.tree().path_of(series), started.error().message());
    }
  }
  return success();
}

void Remotes::stop() {
  std::map<meta::InodeNumber, Running> ending;
  {
    const io::MutexLock lock(mutex_);
    stopped_ = true;
    ending.swap(running_);
  }
  for (auto& [series, running] : ending) running.ask_to_stop();  // all at once
  ending.clear();
}

void Remotes::Running::ask_to_stop() const {
  pusher->ask_to_stop();
  if (collector) collector->ask_to_stop();
}

RemoteReport Remotes::Running::report() const {
  RemoteReport report = pusher->report();
  if (collector) report.collection = collector->report();
  return report;
}

Result<> Remotes::start_pusher(meta::InodeNumber series, const RemoteSettings& settings) {
  const std::string folder = env_.store.folder() + "/remote";
  TRY(make_folder(folder));
  TRY_ASSIGN(auto remote, io::open_object_store(settings.url, settings.s3));
  Running running;
  running.pusher = std::make_unique<SeriesPusher>(env_, states_, series, settings, std::move(remote), wake_rotation_);
  if (settings.slot == 0) {
    TRY_ASSIGN(auto another, io::open_object_store(settings.url, settings.s3));
    running.collector = std::make_unique<DailyCollector>(settings, std::move(another));
  }
  const io::MutexLock lock(mutex_);
  if (stopped_) return Error(ECANCELED, "the mount ends");
  const auto [place, is_new] = running_.try_emplace(series, std::move(running));
  if (!is_new) return Error(EBUSY, settings.url + ": somebody else has added it at this moment");
  place->second.pusher->start();
  if (place->second.collector) place->second.collector->start();
  return success();
}

// One prefix is for one series. A second mount takes a slot of it; a second series of one mount would mix with it.
Result<> Remotes::refuse_shared(meta::InodeNumber series, const RemoteSettings& settings) {
  TRY_ASSIGN(const auto all, meta::list_series(env_.store.tree()));
  for (const meta::InodeNumber one : all) {
    TRY_ASSIGN(const auto known, remote_of(env_.store, one));
    if (!known) continue;
    if (one == series && known->url != settings.url) {
      return Error(EEXIST, env_.store.tree().path_of(series) + " has the remote " + known->url +
                               " already; `ckptfs remote remove` forgets it");
    }
    if (one != series && known->url == settings.url) {
      return Error(EEXIST, settings.url + " is the remote of " + env_.store.tree().path_of(one) +
                               "; another series takes another prefix");
    }
  }
  return success();
}

Result<meta::remote::RemoteFacts> Remotes::add(meta::InodeNumber series, RemoteSettings settings, bool take_over) {
  TRY(refuse_shared(series, settings));
  TRY_ASSIGN(const auto before, remote_of(env_.store, series));
  settings.claim = before && !before->claim.empty() ? before->claim : meta::remote::new_id();
  TRY_ASSIGN(const auto remote, io::open_object_store(settings.url, settings.s3));
  const auto limits = io::RequestLimits::within(kProbeTime, &env_.stop);
  TRY(meta::remote::probe_store(*remote, limits));
  TRY_ASSIGN(const auto facts, meta::remote::found_remote(*remote, settings.slots, io::host_name(), limits));
  const auto how = take_over ? meta::remote::Claim::take_over : meta::remote::Claim::as_before;
  const meta::remote::SlotOwner owner{0, settings.claim, io::host_name(), mount_name(env_.store, series)};
  TRY(meta::remote::claim_slot(*remote, settings.slot, owner, how, limits));
  TRY(set_remote(env_.store, series, settings));
  remove_pusher(series);
  TRY(start_pusher(series, settings));
  return facts;
}

// What is under way there ends.
void Remotes::remove_pusher(meta::InodeNumber series) {
  Running ending;
  {
    const io::MutexLock lock(mutex_);
    const auto found = running_.find(series);
    if (found != running_.end()) {
      ending = std::move(found->second);
      running_.erase(found);
    }
  }
  if (ending.pusher) ending.ask_to_stop();
  ending = {};
  states_.remove_series(series);
  env_.writers.unwatch(series, StepWriters::kRemote);
}

Result<> Remotes::remove(meta::InodeNumber series) {
  TRY_ASSIGN(const auto known, remote_of(env_.store, series));
  if (!known) return Error(ENOENT, env_.store.tree().path_of(series) + " has no remote");
  TRY(set_remote(env_.store, series, std::nullopt));
  remove_pusher(series);
  return success();
}

Result<> Remotes::push(meta::InodeNumber series, meta::InodeNumber step, bool again) {
  const std::string tag = meta::name_of(env_.store.tree(), step);
  const io::MutexLock lock(mutex_);
  const auto found = running_.find(series);
  if (found == running_.end()) {
    return Error(ENOENT, env_.store.tree().path_of(series) + " has no remote; `ckptfs remote add URL " +
                             env_.store.tree().path_of(series) + "` gives it one");
  }
  found->second.pusher->push_now(step, tag, again);
  return success();
}

void Remotes::wake() {
  const io::MutexLock lock(mutex_);
  for (const auto& [series, running] : running_) running.pusher->wake();
}

std::optional<RemoteReport> Remotes::report(meta::InodeNumber series) const {
  const io::MutexLock lock(mutex_);
  const auto found = running_.find(series);
  return found == running_.end() ? std::nullopt : std::optional(found->second.report());
}

std::vector<std::pair<meta::InodeNumber, RemoteReport>> Remotes::reports() const {
  const io::MutexLock lock(mutex_);
  std::vector<std::pair<meta::InodeNumber, RemoteReport>> found;
  for (const auto& [series, running] : running_) found.emplace_back(series, running.report());
  return found;
}

std::string Remotes::error_of(meta::InodeNumber series, const PushState& state) const {
  if (!state.error.empty() || state.stage == PushState::Stage::committed) return state.error;
  const auto report = this->report(series);
  return report ? report->trouble : std::string();
}

}  // namespace ckptfs::fs

#include "fs/remote/remotes.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "io/host.h"
#include "io/log.h"
#include "io/objects/open_object_store.h"
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
  std::map<meta::InodeNumber, std::unique_ptr<SeriesPusher>> ending;
  {
    const io::MutexLock lock(mutex_);
    stopped_ = true;
    ending.swap(pushers_);
  }
  for (auto& [series, pusher] : ending) pusher->ask_to_stop();  // all at once
  ending.clear();
}

Result<> Remotes::start_pusher(meta::InodeNumber series, const RemoteSettings& settings) {
  TRY(make_folder(env_.store.folder() + "/remote"));
  TRY_ASSIGN(auto remote, io::open_object_store(settings.url, settings.s3));
  auto pusher = std::make_unique<SeriesPusher>(env_, states_, series, settings, std::move(remote), wake_rotation_);
  const io::MutexLock lock(mutex_);
  if (stopped_) return Error(ECANCELED, "the mount ends");
  auto& place = pushers_[series];
  if (place) return Error(EBUSY, settings.url + ": somebody else has added it at this moment");
  place = std::move(pusher);
  place->start();
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

Result<meta::remote::RemoteFacts> Remotes::add(meta::InodeNumber series, const RemoteSettings& settings) {
  TRY(refuse_shared(series, settings));
  TRY_ASSIGN(const auto remote, io::open_object_store(settings.url, settings.s3));
  const auto limits = io::RequestLimits::within(kProbeTime, &env_.stop);
  TRY(meta::remote::probe_store(*remote, limits));
  TRY_ASSIGN(const auto facts, meta::remote::found_remote(*remote, settings.slots, io::host_name(), limits));
  TRY(set_remote(env_.store, series, settings));
  remove_pusher(series);
  TRY(start_pusher(series, settings));
  return facts;
}

// What is under way there ends.
void Remotes::remove_pusher(meta::InodeNumber series) {
  std::unique_ptr<SeriesPusher> ending;
  {
    const io::MutexLock lock(mutex_);
    const auto found = pushers_.find(series);
    if (found != pushers_.end()) {
      ending = std::move(found->second);
      pushers_.erase(found);
    }
  }
  ending.reset();
  states_.remove_series(series);
  env_.writers.unwatch(series);
}

Result<> Remotes::remove(meta::InodeNumber series) {
  TRY_ASSIGN(const auto known, remote_of(env_.store, series));
  if (!known) return Error(ENOENT, env_.store.tree().path_of(series) + " has no remote");
  TRY(set_remote(env_.store, series, std::nullopt));
  remove_pusher(series);
  return success();
}

Result<> Remotes::push(meta::InodeNumber series, meta::InodeNumber step) {
  const io::MutexLock lock(mutex_);
  const auto found = pushers_.find(series);
  if (found == pushers_.end()) {
    return Error(ENOENT, env_.store.tree().path_of(series) + " has no remote; `ckptfs remote add URL " +
                             env_.store.tree().path_of(series) + "` gives it one");
  }
  found->second->push_now(step);
  return success();
}

void Remotes::wake() {
  const io::MutexLock lock(mutex_);
  for (const auto& [series, pusher] : pushers_) pusher->wake();
}

std::optional<RemoteReport> Remotes::report(meta::InodeNumber series) const {
  const io::MutexLock lock(mutex_);
  const auto found = pushers_.find(series);
  return found == pushers_.end() ? std::nullopt : std::optional(found->second->report());
}

std::vector<std::pair<meta::InodeNumber, RemoteReport>> Remotes::reports() const {
  const io::MutexLock lock(mutex_);
  std::vector<std::pair<meta::InodeNumber, RemoteReport>> found;
  for (const auto& [series, pusher] : pushers_) found.emplace_back(series, pusher->report());
  return found;
}

std::string Remotes::error_of(meta::InodeNumber series, const PushState& state) const {
  if (!state.error.empty() || state.stage == PushState::Stage::committed) return state.error;
  const auto report = this->report(series);
  return report ? report->trouble : std::string();
}

}  // namespace ckptfs::fs

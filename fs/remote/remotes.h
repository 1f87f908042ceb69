// The remotes of a mount's series: which series has one, who pushes to it (fs/remote/series_pusher.h), and with slot 0
// who collects there (fs/remote/daily_collector.h).
//
// Thread safety: start() and stop() from one thread, the rest from any. Lock: mutex_, held across calls into pushers,
// which take leaves only, but never while a remote is asked.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fs/remote/series_pusher.h"
#include "io/mutex.h"

namespace ckptfs::fs {

class Remotes {
 public:
  // `wake_rotation`: called when a step was committed.
  Remotes(const LocalStep::Environment& environment, PushStates& states, std::function<void()> wake_rotation)
      : env_(environment), states_(states), wake_rotation_(std::move(wake_rotation)) {}
  ~Remotes() { stop(); }

  // Goes on with what the index knows. What of that is out of reach is tried again in the background.
  Result<> start();
  void stop();

  // Tries the remote, makes it if it is new, and pushes to it from now on. Says what it is. Errors are in words:
  // EINVAL: an address that cannot be one. EEXIST: the series has another remote, another series has this one, or the
  // remote has another number of slots, or the slot is another mount's, unless `take_over`. EPROTO: the store cannot
  // serve.
  Result<meta::remote::RemoteFacts> add(meta::InodeNumber series, RemoteSettings settings, bool take_over);
  // ENOENT, in words: the series has none. What is there stays there.
  Result<> remove(meta::InodeNumber series);
  // `again`: also what is there as it is here. ENOENT, in words: the series has no remote.
  Result<> push(meta::InodeNumber series, meta::InodeNumber step, bool again);
  // Something has happened that may have to be pushed.
  void wake();

  std::optional<RemoteReport> report(meta::InodeNumber series) const;
  std::vector<std::pair<meta::InodeNumber, RemoteReport>> reports() const;
  // What stands in the way of the step, in words; empty: nothing.
  std::string error_of(meta::InodeNumber series, const PushState& state) const;

 private:
  Result<> refuse_shared(meta::InodeNumber series, const RemoteSettings& settings);
  struct Running {
    std::unique_ptr<SeriesPusher> pusher;
    std::unique_ptr<DailyCollector> collector;  // none: another slot collects
    void ask_to_stop() const;
    RemoteReport report() const;
  };

  void remove_pusher(meta::InodeNumber series);
  Result<> start_pusher(meta::InodeNumber series, const RemoteSettings& settings);

  const LocalStep::Environment env_;
  PushStates& states_;
  const std::function<void()> wake_rotation_;
  mutable io::Mutex mutex_;
  bool stopped_ GUARDED_BY(mutex_) = true;
  std::map<meta::InodeNumber, Running> running_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs

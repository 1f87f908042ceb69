// The collector of a remote (meta/remote/collector.h), run daily by the mount of slot 0, on a thread of its own with
// idle I/O priority, and with connections of its own: it is never in the way of who pushes.
//
// It runs first some minutes after the start, and then a little more than a day after each run, by a steady clock. What
// fails is tried again after an hour.
//
// Thread safety: report() from any thread; the rest from the owner's. Lock: mutex_ (a leaf).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fs/remote/remote_settings.h"
#include "io/background_thread.h"
#include "io/mutex.h"
#include "io/objects/object_store.h"
#include "meta/remote/collector.h"

namespace ckptfs::fs {

struct CollectionReport {
  uint64_t runs = 0;  // that came to their end, since the mount
  uint64_t failures = 0;
  std::string trouble;                                        // why the last run failed; empty: it did not
  std::chrono::seconds failing{};                             // since the first run that failed in a row; 0: none
  std::optional<std::chrono::system_clock::time_point> last;  // when a run came to its end, by our clock
  uint64_t removed = 0, ended = 0;                            // steps and pushes, since the mount
  uint64_t deleted = 0, deleted_bytes = 0;                    // objects, likewise
  uint64_t waiting = 0, waiting_bytes = 0;                    // objects that the last run has left for a day
  std::vector<std::string> warnings;                          // of the last run
  uint64_t puts = 0, gets = 0, lists = 0, removes = 0;        // requests, since the mount
};

class DailyCollector {
 public:
  DailyCollector(const RemoteSettings& settings, std::unique_ptr<io::ObjectStore> remote);
  ~DailyCollector() { stop(); }

  void start();
  void ask_to_stop() { stopping_ = true; }
  void stop();
  CollectionReport report() const;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  Result<meta::remote::CollectorReport> collect();
  void note(const meta::remote::CollectorReport& done);
  void note_failure(const Error& error);

  const std::string url_;
  const std::unique_ptr<io::ObjectStore> remote_;
  std::atomic<bool> stopping_{false};
  mutable io::Mutex mutex_;
  CollectionReport report_ GUARDED_BY(mutex_);
  std::optional<Clock::time_point> failing_since_ GUARDED_BY(mutex_);
  io::BackgroundThread thread_;
};

}  // namespace ckptfs::fs

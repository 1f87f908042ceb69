// Thins the steps that a rule wants thin, one at a time, on a thread of its own with idle I/O priority. While any file
// is open for writing, and for 10 s after, the thread reads and writes for a twentieth of the time only, as maintenance
// does (meta/care/maintenance.h).
//
// A step that cannot be thinned is remembered with the reason, for `ckptfs policy`. It is tried again when one of its
// files has changed, or after a while if the reason may pass by itself.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "fs/steps/thinner.h"
#include "io/background_thread.h"
#include "io/digest.h"
#include "io/mutex.h"

namespace ckptfs::fs {

struct ThinTask {
  meta::InodeNumber step = 0;
  io::Digest fingerprint{};  // of the step as it was judged
  uint32_t user = 0;         // whose lane makes the view
  std::string type;          // as `ckptfs thin --to` has it
};

struct ThinningReport {
  uint64_t thinned = 0;  // steps, since the mount, by rules
  uint64_t freed = 0;    // bytes
  uint64_t failures = 0;
};

class BackgroundThinner {
 public:
  // `done`: called after each step, whether it was thinned or not.
  BackgroundThinner(meta::Store& store, Thinner& thinner, std::function<void()> done)
      : store_(store), thinner_(thinner), done_(std::move(done)) {}

  void start();
  void stop() { thread_.stop(); }
  // Begins with this step. Does nothing while another one is under way.
  void thin(ThinTask task);
  bool is_busy() const;
  // Why the step, as it is, was not thinned when that was tried; empty: it was not tried.
  std::string refusal(meta::InodeNumber step, const io::Digest& fingerprint) const;
  ThinningReport report() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Refusal {
    io::Digest fingerprint{};
    std::string reason;
    std::optional<Clock::time_point> until;  // then it is tried again
  };

  void run();
  void note(const ThinTask& task, const Result<ThinReport>& result);
  bool pause(std::chrono::nanoseconds worked);

  meta::Store& store_;
  Thinner& thinner_;
  const std::function<void()> done_;
  Clock::time_point written_;  // the thread's own: when somebody had a file open for writing last
  mutable io::Mutex mutex_;
  std::optional<ThinTask> task_ GUARDED_BY(mutex_);
  std::unordered_map<meta::InodeNumber, Refusal> refusals_ GUARDED_BY(mutex_);
  ThinningReport report_ GUARDED_BY(mutex_);
  io::BackgroundThread thread_;
};

}  // namespace ckptfs::fs

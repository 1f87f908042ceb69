// The page that shows a mount in the browser, and the state that it shows.
#pragma once

#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <string_view>

#include "fs/control/http_server.h"
#include "fs/ops/filesystem.h"
#include "io/mutex.h"

namespace ckptfs::fs {

// fs/control/page.html
extern const std::string_view kPageText;

// How full the store was, as points over the whole time since the mount. The longer that is, the further apart they
// are.
//
// Thread safety: none; one thread at a time.
class SpaceHistory {
 public:
  struct Sample {
    int64_t time = 0;   // seconds since 1970
    uint64_t used = 0;  // bytes
  };
  static constexpr size_t kMost = 600;

  void add(const Sample& sample);
  const std::deque<Sample>& samples() const { return samples_; }

 private:
  std::deque<Sample> samples_;
  size_t every_ = 1;  // one in so many of the samples is kept
  size_t given_ = 0;
};

// The state that the page shows, as JSON. Thread safety: all of it. Locks: turn_, held while the steps are inspected,
// so that many viewers cost no more than one; mutex_ (a leaf).
class PageState {
 public:
  explicit PageState(Filesystem& fs) : fs_(fs) {}

  void sample_space();
  // {"now", "status", "usage": as du, "steps": as ls, "policies": {series: rules}, "saves", "space": [[time, bytes
  // used]], "saved_by_ranks", "loaded_by_ranks"}. The last two are there if ranks saved or loaded a step
  // past the mount: {"step", "slowest", "host", "seconds", "stages": {name: seconds}}. At most a twentieth of the time
  // goes into inspecting steps. "looked" says when they were inspected.
  nlohmann::json now();

 private:
  using Clock = std::chrono::steady_clock;

  Result<nlohmann::json> inspect() const;

  Filesystem& fs_;
  io::Mutex turn_;
  nlohmann::json known_ GUARDED_BY(turn_);
  Clock::time_point good_to_ GUARDED_BY(turn_);
  io::Mutex mutex_;
  SpaceHistory space_ GUARDED_BY(mutex_);
};

// "/", "/api/state" and "/metrics". `state` and `fs` must outlive the server's stop().
void add_pages(HttpServer& server, Filesystem& fs, PageState& state);

}  // namespace ckptfs::fs

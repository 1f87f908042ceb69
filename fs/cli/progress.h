// A line that shows the progress of a long operation: on stderr, if that is a terminal, after a second.
//
// Thread safety: show() and show_count() from any thread, the rest from the owner's. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "io/background_thread.h"
#include "io/mutex.h"

namespace ckptfs::fs::cli {

class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();  // erases the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A `total` of 0 is not known.
  void show(uint64_t bytes, uint64_t total);
  // Of a number of things. Another `what` begins a new line.
  void show_count(const std::string& what, uint64_t count);

 private:
  using Clock = std::chrono::steady_clock;

  bool is_due() const REQUIRES(mutex_);
  void print(const std::string& text) REQUIRES(mutex_);
  void erase() REQUIRES(mutex_);

  const bool terminal_;
  io::Mutex mutex_;
  std::string what_ GUARDED_BY(mutex_);
  Clock::time_point began_ GUARDED_BY(mutex_) = Clock::now();
  Clock::time_point printed_ GUARDED_BY(mutex_);
  bool shown_ GUARDED_BY(mutex_) = false;
};

// The same for an operation without a measure of progress: "looking at the steps: 12 s". The destructor erases the
// line.
class Waiting {
 public:
  explicit Waiting(std::string what);

 private:
  void run();

  const std::string what_;
  io::BackgroundThread thread_;  // started if stderr is a terminal
};

}  // namespace ckptfs::fs::cli

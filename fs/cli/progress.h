// A line that shows the progress of a long operation: on stderr, if that is a terminal, after a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

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

 private:
  const std::string what_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const bool terminal_;
  bool shown_ = false;
};

// The same for an operation without a measure of progress: "looking at the steps: 12 s".
class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();  // erases the line
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  void run();

  const std::string what_;
  io::Mutex mutex_;
  io::CondVar changed_;
  bool over_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // none if stderr is no terminal
};

}  // namespace ckptfs::fs::cli

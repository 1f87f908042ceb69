// A line that tells how far something long has come: on stderr, if that is a terminal, once it has taken a second.
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
  ~Progress();  // takes the line away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // total 0: not known.
  void show(uint64_t bytes, uint64_t total);

 private:
  const std::string what_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const bool terminal_;
  bool shown_ = false;
};

// The same for what tells nothing of how far it has come: "looking at the steps: 12 s".
class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();  // takes the line away
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  void run();

  const std::string what_;
  io::Mutex mutex_;
  io::CondVar changed_;
  bool over_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // none where stderr is no terminal
};

}  // namespace ckptfs::fs::cli

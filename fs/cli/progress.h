// A line that shows the progress of a long operation: on stderr, if that is a terminal, after a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "io/background_thread.h"

namespace ckptfs::fs::cli {

class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();  // erases the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A `total` of 0 is not known.
  void show(uint64_t bytes, uint64_t total);
  // Of a number of things.
  void show_count(uint64_t count);

 private:
  void print(const std::string& text);

  const std::string what_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point printed_ = began_;
  const bool terminal_;
  bool shown_ = false;
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

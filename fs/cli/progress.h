// A line that tells how far something long has come: on stderr, if that is a terminal, once it has taken a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

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

}  // namespace ckptfs::fs::cli

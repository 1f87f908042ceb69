// Limits what each user's failed requests write to the log: a program that asks the same again and again would fill the
// disk that the log is on. What is left out is counted, and said with the user's next line.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "io/mutex.h"

namespace ckptfs::fs {

class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr unsigned kLines = 50;
  static constexpr std::chrono::seconds kTime{10};

  // May a line be written now? Then: how many were left out before it.
  std::optional<uint64_t> claim(uint32_t user, Clock::time_point now = Clock::now()) {
    const io::MutexLock lock(mutex_);
    if (users_.size() > kMostUsers) {
      std::erase_if(users_, [now](const auto& one) { return now - one.second.begun >= kTime; });
    }
    User& one = users_[user];
    if (now - one.begun >= kTime) {
      one.begun = now;
      one.lines = 0;
    }
    if (one.lines == kLines) {
      ++one.left_out;
      return std::nullopt;
    }
    ++one.lines;
    return std::exchange(one.left_out, 0);
  }

 private:
  static constexpr size_t kMostUsers = 1000;
  struct User {
    Clock::time_point begun;
    unsigned lines = 0;
    uint64_t left_out = 0;
  };

  io::Mutex mutex_;
  std::unordered_map<uint32_t, User> users_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs

// Times as the tree keeps them.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

#include "io/fault.h"

namespace ckptfs::meta {

using WallTime = std::chrono::sys_time<std::chrono::nanoseconds>;
inline WallTime wall_time(const timespec& t) {
  return WallTime(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}
inline timespec to_timespec(WallTime time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {static_cast<time_t>(seconds.count()), static_cast<long>((since - seconds).count())};
}

// The wall clock, which may jump.
inline timespec now() {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  if (const auto ahead = io::fault_value("clock_ahead")) t.tv_sec += std::stoll(*ahead);  // seconds
  return t;
}
inline bool later(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}
inline uint64_t nanoseconds(const timespec& t) {
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace ckptfs::meta

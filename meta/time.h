// Times as the tree keeps them.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

#include "io/fault.h"

namespace ckptfs::meta {

using WallTime = std::chrono::sys_time<std::chrono::nanoseconds>;
// A file may have any date, but nanoseconds end in 2262: a later date counts as then. One before 1824 counts as then,
// so that a difference between two times fits, too.
inline WallTime wall_time(const timespec& t) {
  constexpr time_t kFirst = -(time_t{1} << 62) / 1'000'000'000, kLast = INT64_MAX / 1'000'000'000;
  if (t.tv_sec >= kLast) return WallTime::max();
  if (t.tv_sec < kFirst) return WallTime(std::chrono::seconds(kFirst));
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
// A date before 1970 counts as 1970, one after 2554 as then.
inline uint64_t nanoseconds(const timespec& t) {
  constexpr uint64_t kLast = UINT64_MAX / 1'000'000'000;
  if (t.tv_sec < 0) return 0;
  if (static_cast<uint64_t>(t.tv_sec) >= kLast) return UINT64_MAX;
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace ckptfs::meta

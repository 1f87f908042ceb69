#include "meta/time.h"

#include <gtest/gtest.h>

#include <limits>

namespace ckptfs::meta {
namespace {

// utime(2) takes any date; nanoseconds in 64 bits end in 2262.
TEST(Time, DatesBeyondWhatNanosecondsHoldKeepTheirOrder) {
  const timespec today = now();
  for (const time_t late : {time_t{9223372037}, time_t{1} << 34, time_t{1} << 40, time_t{1} << 62}) {
    EXPECT_GT(wall_time({late, 0}), wall_time(today)) << late;
    EXPECT_GT(wall_time({late, 0}) - wall_time(today), std::chrono::hours(0)) << late;
    EXPECT_GT(nanoseconds({late, 0}), nanoseconds(today)) << late;
  }
  for (const time_t early : {time_t{-1}, -(time_t{1} << 33), -(time_t{1} << 34), -(time_t{1} << 62)}) {
    EXPECT_LT(wall_time({early, 0}), wall_time(today)) << early;
    EXPECT_GT(wall_time(today) - wall_time({early, 0}), std::chrono::hours(0)) << early;
    EXPECT_LT(nanoseconds({early, 0}), nanoseconds(today)) << early;
  }
  EXPECT_EQ(to_timespec(wall_time(today)).tv_nsec, today.tv_nsec);
}

}  // namespace
}  // namespace ckptfs::meta

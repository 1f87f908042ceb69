#include "fs/cli/doctor_checks.h"

#include <gtest/gtest.h>

namespace ckptfs::fs::cli {
namespace {

TEST(DoctorChecksTest, PassthroughNeedsLinux69) {
  EXPECT_EQ(check_kernel("6.9.0-amd64").verdict, Verdict::ok);
  EXPECT_EQ(check_kernel("6.8.12").verdict, Verdict::warn);
  EXPECT_EQ(check_kernel("unknown").verdict, Verdict::warn);
}

TEST(DoctorChecksTest, LibfuseHasToBe317) {
  EXPECT_EQ(check_libfuse("3.17.2").verdict, Verdict::ok);
  EXPECT_EQ(check_libfuse("3.14.0").verdict, Verdict::fail);
}

TEST(DoctorChecksTest, AGuestThatHaltsAtOnceIsToldOf) {
  EXPECT_EQ(check_wake_ups("haltpoll", "0").verdict, Verdict::warn);
  EXPECT_EQ(check_wake_ups("haltpoll", "200000").verdict, Verdict::ok);
  EXPECT_EQ(check_wake_ups("intel_idle", "0").verdict, Verdict::ok);
  EXPECT_EQ(check_wake_ups("", "").verdict, Verdict::ok);
}

}  // namespace
}  // namespace ckptfs::fs::cli

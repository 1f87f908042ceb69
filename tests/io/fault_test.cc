#include "io/fault.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

class FaultTest : public ::testing::Test {
 protected:
  ~FaultTest() override { set_fault("point", ""); }
};
using FaultDeathTest = FaultTest;

TEST_F(FaultTest, WhatIsNotSetDoesNothing) {
  EXPECT_OK(fault_point("point"));
  EXPECT_FALSE(fault_value("point"));
}

TEST_F(FaultTest, FailsByNumberAndByName) {
  set_fault("point", "error:28");
  EXPECT_ERRNO(ENOSPC, fault_point("point"));
  EXPECT_ERRNO(ENOSPC, fault_point("point"));
  EXPECT_OK(fault_point("other"));
  set_fault("point", "error:EIO");
  EXPECT_ERRNO(EIO, fault_point("point"));
  set_fault("point", "");
  EXPECT_OK(fault_point("point"));
}

TEST_F(FaultTest, AWrongErrnoIsLoud) {
  set_fault("point", "error:ENOSUCHTHING");
  EXPECT_ERRNO(EINVAL, fault_point("point"));
  set_fault("point", "sleep:long");
  EXPECT_ERRNO(EINVAL, fault_point("point"));
}

TEST_F(FaultTest, ACountFiresOnce) {
  set_fault("point", "3:error:EIO");
  EXPECT_OK(fault_point("point"));
  EXPECT_OK(fault_point("point"));
  EXPECT_ERRNO(EIO, fault_point("point"));
  EXPECT_OK(fault_point("point"));
}

TEST_F(FaultTest, AValueIsNotACount) {
  set_fault("point", "4:512");
  EXPECT_EQ(fault_value("point"), "4:512");
  EXPECT_OK(fault_point("point"));
}

TEST_F(FaultTest, Sleeps) {
  set_fault("point", "sleep:30");
  const auto before = std::chrono::steady_clock::now();
  EXPECT_OK(fault_point("point"));
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(30));
}

TEST_F(FaultTest, CountsAcrossThreads) {
  set_fault("point", "500:error:EIO");
  std::atomic<int> failed = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int hit = 0; hit < 250; ++hit) failed += fault_point("point") ? 0 : 1;
      });
    }
  }
  EXPECT_EQ(failed, 1);
}

TEST_F(FaultDeathTest, Kills) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        set_fault("point", "2:kill");
        if (!fault_point("point")) std::_Exit(1);
        static_cast<void>(fault_point("point"));
        std::_Exit(2);
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FaultDeathTest, ReadsTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CKPTFS_FAULTS", "first=error:5;second=2:error:ENOSPC;third=4:512;;broken", 1);
        const bool right = !fault_point("first") && fault_point("second") && !fault_point("second") &&
                           fault_value("third") == "4:512" && fault_point("broken");
        std::_Exit(right ? 7 : 1);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace ckptfs::io

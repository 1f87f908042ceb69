#include "meta/remote/upload_limit.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ckptfs::meta::remote {
namespace {

using namespace std::chrono_literals;

template <class Act>
std::chrono::steady_clock::duration time_of(const Act& act) {
  const auto begin = std::chrono::steady_clock::now();
  act();
  return std::chrono::steady_clock::now() - begin;
}

constexpr auto kAtOnce = 2s;  // on a machine that is busy

TEST(UploadLimit, WithoutOneNobodyWaits) {
  UploadLimit limit;
  EXPECT_LT(time_of([&] {
              for (int at = 0; at < 1000; ++at) limit.take(uint64_t{1} << 40, nullptr);
            }),
            kAtOnce);
}

// The first may go at once, since nothing has gone before.
TEST(UploadLimit, AllThatShareItGoNoFaster) {
  UploadLimit limit(10000);
  const auto time = time_of([&] {
    std::vector<std::thread> threads;
    for (int at = 0; at < 4; ++at) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < 2; ++turn) limit.take(1000, nullptr);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_GE(time, 700ms);
}

TEST(UploadLimit, AStopEndsTheWait) {
  UploadLimit limit(1);
  limit.take(uint64_t{1} << 40, nullptr);
  const std::atomic<bool> stop{true};
  EXPECT_LT(time_of([&] { limit.take(1, &stop); }), kAtOnce);
}

TEST(UploadLimit, AnotherLimitEndsTheWait) {
  UploadLimit limit(1);
  limit.take(1000, nullptr);
  std::thread waits([&] { limit.take(1, nullptr); });
  const auto time = time_of([&] {
    limit.set(0);
    waits.join();
  });
  EXPECT_LT(time, kAtOnce);
  EXPECT_EQ(limit.rate(), 0U);
}

// What was taken at the old rate is no longer waited for at a new one.
TEST(UploadLimit, ANewLimitCountsFromNow) {
  UploadLimit limit(1);
  limit.take(1'000'000, nullptr);
  limit.set(1'000'000);
  EXPECT_LT(time_of([&] { limit.take(1, nullptr); }), kAtOnce);
}

TEST(UploadLimit, NoAmountIsTooMuchToCount) {
  UploadLimit limit(1);
  const std::atomic<bool> stop{true};
  for (int at = 0; at < 4; ++at) limit.take(UINT64_MAX, &stop);
  EXPECT_EQ(limit.rate(), 1U);
}

}  // namespace
}  // namespace ckptfs::meta::remote

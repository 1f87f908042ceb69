#include "fs/base/turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace ckptfs::fs {
namespace {

TEST(Turns, SoManyWorkAtATimeAndAllComeToIt) {
  constexpr unsigned kAtOnce = 3, kThreads = 12, kRounds = 200;
  Turns turns(kAtOnce);
  std::atomic<unsigned> inside{0}, most{0}, done{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (unsigned round = 0; round < kRounds; ++round) {
          const std::lock_guard turn(turns);
          const unsigned now = ++inside;
          for (unsigned seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
          std::this_thread::yield();
          --inside;
          ++done;
        }
      });
    }
  }
  EXPECT_LE(most, kAtOnce);
  EXPECT_EQ(done, kThreads * kRounds);
}

}  // namespace
}  // namespace ckptfs::fs

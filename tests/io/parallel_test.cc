#include "io/parallel.h"
#include "io/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <set>
#include <thread>
#include <vector>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

TEST(ParallelTest, EachOnce) {
  std::vector<std::atomic<int>> calls(10'000);
  ASSERT_OK(for_each_parallel(calls.size(), 4, [&](size_t i) -> Result<> {
    ++calls[i];
    return success();
  }));
  for (const auto& count : calls) ASSERT_EQ(count, 1);
}

TEST(ParallelTest, NothingToDo) {
  EXPECT_OK(for_each_parallel(0, 4, [](size_t) -> Result<> { return Error(EIO); }));
}

TEST(ParallelTest, NoThreadsIsTheCallerAlone) {
  for (const unsigned threads : {0u, 1u}) {
    std::set<std::thread::id> seen;
    ASSERT_OK(for_each_parallel(100, threads, [&](size_t) -> Result<> {
      seen.insert(std::this_thread::get_id());
      return success();
    }));
    EXPECT_EQ(seen, std::set{std::this_thread::get_id()});
  }
}

// Each call waits for the other three, so this would never end with fewer than four threads.
TEST(ParallelTest, AsManyThreadsAsAsked) {
  std::barrier together(4);
  io::Mutex mutex;
  std::set<std::thread::id> seen;
  ASSERT_OK(for_each_parallel(4, 4, [&](size_t) -> Result<> {
    together.arrive_and_wait();
    const io::MutexLock lock(mutex);
    seen.insert(std::this_thread::get_id());
    return success();
  }));
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_TRUE(seen.contains(std::this_thread::get_id()));
}

TEST(ParallelTest, AnErrorStopsAndIsReturned) {
  std::vector<size_t> begun;
  const auto result = for_each_parallel(1000, 1, [&](size_t i) -> Result<> {
    begun.push_back(i);
    if (i == 5) return Error(ENOSPC, "the sixth");
    return success();
  });
  EXPECT_ERRNO(ENOSPC, result);
  EXPECT_EQ(result.error().message(), "the sixth");
  EXPECT_EQ(begun.size(), 6u);
}

// All four fail together. One of the errors is returned, and none of the other 996 calls begins.
TEST(ParallelTest, SeveralErrors) {
  std::barrier together(4);
  std::atomic<size_t> begun = 0;
  const auto result = for_each_parallel(1000, 4, [&](size_t i) -> Result<> {
    ++begun;
    together.arrive_and_wait();
    return Error(static_cast<int>(i) + 1);
  });
  ASSERT_FALSE(result);
  EXPECT_GE(result.error().errno_value(), 1);
  EXPECT_LE(result.error().errno_value(), 4);
  EXPECT_EQ(begun, 4u);
}

}  // namespace
}  // namespace ckptfs::io

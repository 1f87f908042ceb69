#include "gpu/twin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gpu/open_device.h"
#include "tests/io/testing.h"

namespace ckptfs::gpu {
namespace {

using io::testing::pattern;

constexpr size_t kSize = 1 << 20;

class TwinTest : public ::testing::Test {
 protected:
  TwinTest() : device_(std::chrono::milliseconds(20)), staging_(kSize) {
    EXPECT_OK(device_.pin(staging_));
    auto memory = device_.allocate(kSize);
    EXPECT_OK(memory);
    memory_ = memory.value();
  }

  void settle() {
    const auto event = OwnedEvent::make(device_);
    EXPECT_OK(device_.record(event.value().get(), nullptr));
    EXPECT_OK(device_.wait(event.value().get()));
  }

  Twin device_;
  std::vector<std::byte> staging_;
  std::byte* memory_ = nullptr;
};

TEST_F(TwinTest, CopiesThereAndBack) {
  std::ranges::copy(pattern(kSize, 1), staging_.begin());
  ASSERT_OK(device_.copy_in(memory_, staging_, nullptr));
  settle();
  std::ranges::fill(staging_, std::byte{0});
  ASSERT_OK(device_.copy_out(std::span(staging_).subspan(5, 100), memory_ + 7, nullptr));
  settle();
  const auto expected = pattern(kSize, 1);
  EXPECT_TRUE(std::equal(staging_.begin() + 5, staging_.begin() + 105, expected.begin() + 7));
}

TEST_F(TwinTest, NobodyTouchesItsMemory) {
  EXPECT_DEATH({ *memory_ = std::byte{1}; }, "");
  EXPECT_DEATH({ staging_[0] = *memory_; }, "");
}

TEST_F(TwinTest, KnowsItsMemory) {
  EXPECT_EQ(device_.kind_of(memory_ + kSize - 1).value(), MemoryKind::device);
  EXPECT_EQ(device_.kind_of(staging_.data()).value(), MemoryKind::host);
  ASSERT_OK(device_.release(memory_));
  EXPECT_EQ(device_.kind_of(memory_).value(), MemoryKind::host);
  EXPECT_ERRNO(EINVAL, device_.release(memory_));
}

TEST_F(TwinTest, RefusesWhatCudaWouldMiss) {
  std::vector<std::byte> pageable(100);
  EXPECT_ERRNO(EINVAL, device_.copy_in(memory_, pageable, nullptr));
  EXPECT_ERRNO(EINVAL, device_.copy_out(pageable, memory_, nullptr));
  EXPECT_ERRNO(EINVAL, device_.copy_in(memory_ + kSize - 5, std::span(staging_).first(6), nullptr));
}

// Without a wait the copy has not run yet. A later copy of another stream that is ordered after the event finds its
// result.
TEST_F(TwinTest, AnEventIsDoneWhenWhatWasBeforeItIs) {
  const auto event = OwnedEvent::make(device_);
  ASSERT_OK(event);
  EXPECT_TRUE(device_.is_done(event.value().get()).value()) << "it was never recorded";
  const auto stream = OwnedStream::make(device_);
  ASSERT_OK(stream);
  int early = 0;
  for (int round = 0; round < 10; ++round) {
    std::ranges::fill(staging_, static_cast<std::byte>(round + 1));
    ASSERT_OK(device_.copy_in(memory_, std::span(staging_).first(kSize / 2), nullptr));
    ASSERT_OK(device_.record(event.value().get(), nullptr));
    early += device_.is_done(event.value().get()).value() ? 0 : 1;
    ASSERT_OK(device_.order(stream.value().get(), event.value().get()));
    ASSERT_OK(device_.copy_out(std::span(staging_).last(kSize / 2), memory_, stream.value().get()));
    ASSERT_OK(device_.record(event.value().get(), stream.value().get()));
    ASSERT_OK(device_.wait(event.value().get()));
    EXPECT_EQ(staging_.back(), static_cast<std::byte>(round + 1));
  }
  EXPECT_GT(early, 0);
}

TEST(OpenDevice, ByName) {
  const auto twin = open_device("twin");
  ASSERT_OK(twin);
  EXPECT_EQ(twin.value()->name(), "twin");
  EXPECT_OK(open_device(""));
  EXPECT_ERRNO(EINVAL, open_device("cuda:"));
  EXPECT_ERRNO(EINVAL, open_device("gpu0"));
  EXPECT_ERRNO(ENODEV, open_device("cuda:1000"));
}

}  // namespace
}  // namespace ckptfs::gpu

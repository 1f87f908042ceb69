#include "gpu/load.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "io/aligned_buffer.h"
#include "io/fault.h"
#include "tests/gpu/staging_test.h"

namespace ckptfs::gpu {
namespace {

using io::testing::pattern;
using testing::kSlot;

class LoadTest : public testing::StagingTest {
 protected:
  void add_file(size_t size) {
    const auto name = "file" + std::to_string(files_.size());
    contents_.push_back(pattern(size, static_cast<unsigned>(files_.size())));
    { ASSERT_OK(io::fsync_fd(file(name, contents_.back()).get())); }
    auto fd = io::open_at(AT_FDCWD, path(name), O_RDONLY);
    ASSERT_OK(fd);
    ::posix_fadvise(fd.value().get(), 0, 0, POSIX_FADV_DONTNEED);
    auto source = make_source(path(name), fd.value().get());
    ASSERT_OK(source);
    opened_.push_back(std::move(fd).value());
    files_.push_back(std::move(source).value());
  }

  std::vector<std::byte> expected(const Wanted& wanted) const {
    const auto begin = contents_[wanted.file].begin() + static_cast<ptrdiff_t>(wanted.offset);
    return {begin, begin + static_cast<ptrdiff_t>(wanted.size)};
  }

  // Returns the content of device memory.
  std::vector<std::byte> bytes_of(const std::byte* memory, size_t size) {
    std::vector<std::byte> bytes(size);
    EXPECT_OK(twin_->pin(bytes));
    EXPECT_OK(twin_->copy_out(bytes, memory, nullptr));
    const auto event = OwnedEvent::make(*twin_);
    EXPECT_OK(twin_->record(event.value().get(), nullptr));
    EXPECT_OK(twin_->wait(event.value().get()));
    twin_->unpin(bytes);
    return bytes;
  }

  std::vector<std::vector<std::byte>> contents_;
  std::vector<io::Fd> opened_;
  std::vector<SourceFile> files_;
};

TEST_F(LoadTest, AnyRangesOfAnyFilesOntoTheDeviceAndIntoHostMemory) {
  for (const size_t size : {size_t{3'000'001}, size_t{10}, 40 * kSlot}) add_file(size);
  EXPECT_TRUE(files_[0].direct);
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<Wanted> wanted;
    std::vector<std::vector<std::byte>> host;
    std::vector<std::byte*> device;
    for (int count = 0; count < 30; ++count) {
      const auto which = static_cast<uint32_t>(random() % files_.size());
      const uint64_t offset = random() % contents_[which].size();
      const uint64_t size = std::min<uint64_t>(random() % (3 * kSlot), contents_[which].size() - offset);
      std::byte* target = nullptr;
      if (random() % 2 == 0) {
        target = host.emplace_back(size).data();
      } else {
        target = twin_->allocate(size + 1).value() + 1;
        device.push_back(target - 1);
      }
      wanted.push_back({which, offset, size, target});
    }
    const auto report = load(*staging_, files_, wanted, nullptr);
    ASSERT_OK(report);
    for (const Wanted& one : wanted) {
      const bool on_device = twin_->kind_of(one.target).value() == MemoryKind::device;
      const auto got = on_device ? bytes_of(one.target, one.size) : std::vector(one.target, one.target + one.size);
      ASSERT_TRUE(got == expected(one)) << "round " << round;
    }
    for (std::byte* const memory : device) ASSERT_OK(twin_->release(memory));
  }
}

TEST_F(LoadTest, WhatLiesInMemoryAsOnTheDiskIsNotCopied) {
  add_file(32 * kSlot);
  io::AlignedBuffer buffer;
  const auto memory = buffer.get(32 * kSlot);
  const auto report = load(*staging_, files_, {{0, 0, 32 * kSlot, memory.data()}}, nullptr);
  ASSERT_OK(report);
  EXPECT_EQ(report.value().straight, 32 * kSlot);
  EXPECT_EQ(report.value().direct, 32 * kSlot);
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), contents_[0].begin(), contents_[0].end()));
}

TEST_F(LoadTest, WhatIsInThePageCacheIsReadFromThere) {
  add_file(4 * kSlot);
  std::vector<std::byte> all(4 * kSlot);
  auto again = io::open_at(AT_FDCWD, path("file0"), O_RDONLY);
  ASSERT_OK(again);
  ASSERT_OK(io::read_full(again.value().get(), all, 0));
  auto source = make_source(path("file0"), again.value().get());
  ASSERT_OK(source);
  if (source.value().direct) GTEST_SKIP() << "cachestat: this kernel has none";
  files_[0] = std::move(source).value();
  std::ranges::fill(all, std::byte{0});
  const auto report = load(*staging_, files_, {{0, 0, all.size(), all.data()}}, nullptr);
  ASSERT_OK(report);
  EXPECT_EQ(report.value().direct, 0U);
  EXPECT_TRUE(all == contents_[0]);
}

// The caller's stream still uses the memory: the load writes nothing to it before that work has ended.
TEST_F(LoadTest, WaitsForTheStreamOfTheCaller) {
  add_file(kSlot);
  std::byte* const memory = twin_->allocate(kSlot).value();
  const auto stream = OwnedStream::make(*twin_);
  ASSERT_OK(stream);
  std::vector<std::byte> other(kSlot, std::byte{0xEE});
  ASSERT_OK(twin_->pin(other));
  for (int round = 0; round < 50; ++round) ASSERT_OK(twin_->copy_in(memory, other, stream.value().get()));
  ASSERT_OK(load(*staging_, files_, {{0, 0, kSlot, memory}}, stream.value().get()));
  EXPECT_TRUE(bytes_of(memory, kSlot) == contents_[0]);
  ASSERT_OK(twin_->drain(stream.value().get()));
  twin_->unpin(other);
}

// The same for host memory that the device is still filling.
TEST_F(LoadTest, HostMemoryWaitsForTheStreamToo) {
  add_file(kSlot);
  std::byte* const memory = twin_->allocate(kSlot).value();
  const auto stream = OwnedStream::make(*twin_);
  ASSERT_OK(stream);
  std::vector<std::byte> target(kSlot);
  ASSERT_OK(twin_->pin(target));
  for (int round = 0; round < 50; ++round) ASSERT_OK(twin_->copy_out(target, memory, stream.value().get()));
  ASSERT_OK(load(*staging_, files_, {{0, 0, kSlot, target.data()}}, stream.value().get()));
  ASSERT_OK(twin_->drain(stream.value().get()));
  EXPECT_TRUE(target == contents_[0]);
  twin_->unpin(target);
}

TEST_F(LoadTest, AFileThatEndsEarlierIsNamed) {
  add_file(kSlot);
  std::vector<std::byte> memory(2 * kSlot);
  const auto beyond = load(*staging_, files_, {{0, 0, 2 * kSlot, memory.data()}}, nullptr);
  EXPECT_ERRNO(EIO, beyond);
  EXPECT_NE(beyond.error().message().find("file0"), std::string::npos);
  ASSERT_EQ(::truncate(path("file0").c_str(), 1000), 0);
  const auto shrunk = load(*staging_, files_, {{0, 0, kSlot, memory.data()}}, nullptr);
  EXPECT_ERRNO(EIO, shrunk);
  EXPECT_NE(shrunk.error().message().find("file0"), std::string::npos);
}

TEST_F(LoadTest, AnErrorInTheMiddleLeavesNothingInFlight) {
  add_file(100 * kSlot);
  std::byte* const memory = twin_->allocate(100 * kSlot).value();
  io::set_fault("load.read", "40:error:EIO");
  EXPECT_ERRNO(EIO, load(*staging_, files_, {{0, 0, 100 * kSlot, memory}}, nullptr));
  io::set_fault("load.read", "");
  ASSERT_OK(load(*staging_, files_, {{0, 0, 100 * kSlot, memory}}, nullptr));
  EXPECT_TRUE(bytes_of(memory, 100 * kSlot) == contents_[0]);
}

// A ring that failed to submit a read cannot be used any more. The next load makes another one.
TEST_F(LoadTest, ARingThatIsOutOfOrderIsReplaced) {
  add_file(20 * kSlot);
  std::vector<std::byte> memory(20 * kSlot);
  io::set_fault("transfer.submit", "3:error:ENOMEM");
  EXPECT_ERRNO(ENOMEM, load(*staging_, files_, {{0, 0, memory.size(), memory.data()}}, nullptr));
  io::set_fault("transfer.submit", "");
  ASSERT_OK(load(*staging_, files_, {{0, 0, memory.size(), memory.data()}}, nullptr));
  EXPECT_TRUE(memory == contents_[0]);
}

TEST(StagingOptions, ThatMakeNoRing) {
  const auto twin = std::make_shared<Twin>();
  EXPECT_ERRNO(EINVAL, Staging::make(twin, {.bytes = 1 << 20, .slot = 1000}));
  EXPECT_ERRNO(EINVAL, Staging::make(twin, {.bytes = 1 << 20, .slot = 1 << 20}));
  EXPECT_ERRNO(EINVAL, Staging::make(twin, {.bytes = 0, .slot = 0}));
}

}  // namespace
}  // namespace ckptfs::gpu

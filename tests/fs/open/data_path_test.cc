// The daemon's own data path against a model in memory: any offset, length and memory alignment, from several threads
// whose ranges meet inside blocks, on a file that takes O_DIRECT.
#include "fs/open/data_path.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "io/fault.h"

namespace ckptfs::fs {
namespace {

// A nameless scratch file in the current folder, which must be on a file system that takes O_DIRECT.
class DataPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "data_path_test.XXXXXX";
    file_ = io::Fd(::mkstemp(name.data()));
    ASSERT_TRUE(file_) << std::strerror(errno);
    direct_ = io::Fd(::open(name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
    ::unlink(name.c_str());
    if (!direct_) GTEST_SKIP() << "the file system of the build folder takes no O_DIRECT";
    real_ = io::direct_alignment(direct_.get());
  }

  DataPath direct_path(io::DirectAlignment alignment) {
    DataPath::Descriptors descriptors;
    descriptors.own = io::Fd(::dup(file_.get()));
    descriptors.direct = io::Fd(::dup(direct_.get()));
    return DataPath(std::move(descriptors), alignment, counters_);
  }
  DataPath buffered_path() {
    DataPath::Descriptors descriptors;
    descriptors.shared = file_.get();
    return DataPath(std::move(descriptors), real_, counters_);
  }

  io::Fd file_;
  io::Fd direct_;
  io::DirectAlignment real_;
  Counters counters_;
};

std::vector<std::byte> bytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> result(size);
  for (auto& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

std::vector<std::byte> read_of(DataPath& path, size_t size, off_t offset) {
  const auto result = path.read(size, offset);
  EXPECT_TRUE(result) << result.error().message();
  if (!result) return {};
  return {result.value().begin(), result.value().end()};
}

// One thread's operations on its own range of the file, with any offset and length.
void work_on_own_range(DataPath& path, std::vector<std::byte>& model, size_t begin, size_t end, unsigned seed,
                       int operations) {
  std::mt19937 random(seed);
  std::vector<std::byte> memory(size_t{300} << 10);
  for (int i = 0; i < operations; ++i) {
    const size_t longest = random() % 8 == 0 ? size_t{256} << 10 : size_t{9000};
    const size_t offset = begin + random() % (end - begin);
    const size_t length = std::min<size_t>(1 + random() % longest, end - offset);
    const size_t shift = random() % 600;  // of the caller's memory, relative to a block
    if (random() % 2 == 0) {
      for (size_t j = 0; j < length; ++j) memory[shift + j] = static_cast<std::byte>(random());
      const auto written = path.write(std::span(memory).subspan(shift, length), static_cast<off_t>(offset));
      ASSERT_FALSE(written.error) << written.error->message();
      ASSERT_EQ(written.bytes, length);
      std::memcpy(model.data() + offset, memory.data() + shift, length);
    } else {
      const auto read = path.read(length, static_cast<off_t>(offset));
      ASSERT_TRUE(read) << read.error().message();
      ASSERT_EQ(read.value().size(), length) << "at " << offset;
      ASSERT_EQ(std::memcmp(read.value().data(), model.data() + offset, length), 0)
          << length << " bytes at " << offset << " differ";
    }
  }
}

class DataPathModelTest : public DataPathTest, public ::testing::WithParamInterface<size_t> {};

// The parameter is the least alignment that the path assumes: the disk's own, or more (as for a disk with larger
// blocks).
TEST_P(DataPathModelTest, ThreadsThatMeetInsideBlocksLoseNothing) {
  const io::DirectAlignment alignment{std::max(real_.memory, GetParam()), std::max(real_.offset, GetParam())};
  const unsigned seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr size_t kSize = (size_t{4} << 20) + 777;
  constexpr size_t kThreads = 4;
  std::vector<std::byte> model = bytes(kSize, seed);
  DataPath path = direct_path(alignment);
  const auto filled = path.write(model, 0);
  ASSERT_FALSE(filled.error) << filled.error->message();
  ASSERT_EQ(filled.bytes, kSize);

  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const size_t begin = kSize * t / kThreads;
      work_on_own_range(path, model, begin, kSize * (t + 1) / kThreads, seed + static_cast<unsigned>(t), 400);
    });
  }
  for (auto& thread : threads) thread.join();

  EXPECT_TRUE(path.is_direct());
  EXPECT_EQ(value(counters_.direct_fallbacks), 0u);
  EXPECT_EQ(read_of(path, kSize, 0), model);
  std::vector<std::byte> plain(kSize);
  const auto read = io::read_full(file_.get(), plain, 0);
  ASSERT_TRUE(read);
  EXPECT_EQ(plain, model);
}

INSTANTIATE_TEST_SUITE_P(Alignments, DataPathModelTest, ::testing::Values(size_t{512}, size_t{4096}));

TEST_F(DataPathTest, ReadsEndWithTheFile) {
  const auto content = bytes(100'003, 1);
  DataPath path = direct_path(real_);
  ASSERT_EQ(path.write(content, 0).bytes, content.size());
  EXPECT_EQ(read_of(path, 1 << 20, 0), content);
  EXPECT_EQ(read_of(path, 4096, 100'000), std::vector<std::byte>(content.begin() + 100'000, content.end()));
  EXPECT_TRUE(read_of(path, 4096, 100'003).empty());
  EXPECT_TRUE(read_of(path, 4096, 1 << 20).empty());
}

TEST_F(DataPathTest, WritesBeyondTheEndLeaveAHole) {
  DataPath path = direct_path(real_);
  const auto content = bytes(5000, 2);
  ASSERT_EQ(path.write(content, 70'001).bytes, content.size());
  EXPECT_EQ(read_of(path, 70'001, 0), std::vector<std::byte>(70'001));
  EXPECT_EQ(read_of(path, 1 << 20, 70'001), content);
}

TEST_F(DataPathTest, BufferedHandlesReadThroughTheSharedDescriptor) {
  const auto content = bytes(10'000, 3);
  DataPath path = buffered_path();
  EXPECT_FALSE(path.is_direct());
  ASSERT_EQ(path.write(content, 13).bytes, content.size());
  EXPECT_EQ(read_of(path, 1 << 20, 13), content);
  EXPECT_EQ(value(counters_.bytes_written), content.size());
  EXPECT_EQ(value(counters_.bytes_read), content.size());
}

// The disk may demand more alignment than it reported, or than a test made it report.
TEST_F(DataPathTest, ARefusalTurnsToBufferedAndIsCounted) {
  if (real_.offset <= 1) GTEST_SKIP() << "this disk takes O_DIRECT at any offset";
  DataPath path = direct_path({1, 1});
  const auto content = bytes(9001, 4);
  const auto written = path.write(content, 7);
  ASSERT_FALSE(written.error) << written.error->message();
  EXPECT_EQ(written.bytes, content.size());
  EXPECT_FALSE(path.is_direct());
  EXPECT_EQ(value(counters_.direct_fallbacks), 1u);
  EXPECT_EQ(read_of(path, 1 << 20, 7), content);
  EXPECT_EQ(value(counters_.direct_fallbacks), 1u);
}

TEST_F(DataPathTest, ErrorsReachTheCaller) {
  DataPath::Descriptors descriptors;
  const io::Fd read_only(::open(("/proc/self/fd/" + std::to_string(file_.get())).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only);
  descriptors.shared = read_only.get();
  DataPath path(std::move(descriptors), real_, counters_);
  const auto written = path.write(bytes(10, 5), 0);
  ASSERT_TRUE(written.error);
  EXPECT_EQ(written.error->errno_value(), EBADF);
  EXPECT_EQ(written.bytes, 0u);
}

// Within the file, the body of an unaligned overwrite is in flight together with its tail. At the end of the file it is
// not.
TEST_F(DataPathTest, UnalignedOverwritesNeedNoFallback) {
  DataPath path = direct_path(real_);
  auto model = bytes(1 << 20, 7);
  ASSERT_EQ(path.write(model, 0).bytes, model.size());
  const auto content = bytes(300001, 8);
  ASSERT_EQ(path.write(content, 52).bytes, content.size());
  std::copy(content.begin(), content.end(), model.begin() + 52);
  EXPECT_EQ(read_of(path, model.size(), 0), model);
  ASSERT_EQ(path.write(content, (1 << 20) - 1000).bytes, content.size());
  EXPECT_EQ(read_of(path, content.size(), (1 << 20) - 1000), content);
  EXPECT_EQ(value(counters_.io_uring_fallbacks), 0u);
  EXPECT_EQ(value(counters_.direct_fallbacks), 0u);
}

#ifdef CKPTFS_FAULT_POINTS
// Containers forbid io_uring.
TEST_F(DataPathTest, WithoutIoUringUnalignedOverwritesWorkAndAreCounted) {
  DataPath path = direct_path(real_);
  ASSERT_EQ(path.write(bytes(1 << 20, 9), 0).bytes, size_t{1} << 20);
  const auto content = bytes(300001, 10);
  io::set_fault("io_uring", "error:EPERM");
  std::thread([&] { EXPECT_EQ(path.write(content, 52).bytes, content.size()); }).join();
  io::set_fault("io_uring", "");
  EXPECT_EQ(value(counters_.io_uring_fallbacks), 1u);
  EXPECT_EQ(read_of(path, content.size(), 52), content);
}

TEST_F(DataPathTest, FaultPointFailsAWrite) {
  DataPath path = direct_path(real_);
  io::set_fault("fs.write", "error:28");
  const auto written = path.write(bytes(10, 6), 0);
  io::set_fault("fs.write", "");
  ASSERT_TRUE(written.error);
  EXPECT_EQ(written.error->errno_value(), ENOSPC);
  EXPECT_EQ(path.write(bytes(10, 6), 0).bytes, 10u);
}
#endif

}  // namespace
}  // namespace ckptfs::fs

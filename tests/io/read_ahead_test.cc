#include "io/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSize = 3 * ReadAhead::kDistance;

class ReadAheadTest : public testing::XfsTest {
 protected:
  void SetUp() override {
    XfsTest::SetUp();
    if (IsSkipped()) return;
    utsname kernel{};
    ASSERT_EQ(::uname(&kernel), 0);
    int major = 0, minor = 0;
    ASSERT_EQ(std::sscanf(kernel.release, "%d.%d", &major, &minor), 2);
    if (std::pair(major, minor) < std::pair(6, 12)) GTEST_SKIP() << "kernel: it reads nothing ahead before Linux 6.12";
    file_ = file("read", testing::pattern(kSize, 1));
    ASSERT_OK(fdatasync_fd(file_.get()));
    ASSERT_EQ(::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    ASSERT_EQ(in_memory(0, kSize), 0u);
  }
  // Returns how many bytes of this range are in memory.
  uint64_t in_memory(uint64_t begin, uint64_t end) const {
    void* const mapped = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file_.get(), 0);
    std::vector<unsigned char> pages(kSize / kPage);
    EXPECT_EQ(::mincore(mapped, kSize, pages.data()), 0);
    ::munmap(mapped, kSize);
    const auto first = pages.begin() + static_cast<ptrdiff_t>(begin / kPage);
    const auto last = pages.begin() + static_cast<ptrdiff_t>(end / kPage);
    return kPage * static_cast<uint64_t>(std::count_if(first, last, [](auto page) { return (page & 1) != 0; }));
  }
  // Waits until the range is in memory. Returns false if that takes too long.
  bool comes_into_memory(uint64_t begin, uint64_t end) const {
    for (int tries = 0; tries < 1000; ++tries) {
      if (in_memory(begin, end) == end - begin) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  Fd file_;
};

TEST_F(ReadAheadTest, StaysAheadOfItsReader) {
  ReadAhead ahead;
  uint64_t position = 0;
  for (; position < kMiB * 4; position += 64 << 10) ahead.reader_is_at(file_.get(), position, kSize);
  EXPECT_TRUE(comes_into_memory(0, position + ReadAhead::kDistance - kMiB));
  EXPECT_EQ(in_memory(kSize - 2 * kMiB, kSize), 0u) << "so far ahead nobody asked it to read";
  for (; position < kSize; position += 64 << 10) ahead.reader_is_at(file_.get(), position, kSize);
  EXPECT_TRUE(comes_into_memory(0, kSize));
}

TEST_F(ReadAheadTest, StaysAheadOfAReaderOfLargePieces) {
  ReadAhead ahead;
  for (uint64_t position = 0; position <= 8 * kMiB; position += kMiB) {
    ahead.reader_is_at(file_.get(), position, kSize);
  }
  EXPECT_TRUE(comes_into_memory(0, 12 * kMiB));
}

TEST_F(ReadAheadTest, GoesOnBehindWhatIsInMemory) {
  ASSERT_EQ(testing::content_of(file_.get()).size(), kSize);
  ASSERT_EQ(::posix_fadvise(file_.get(), 4 * kMiB, 0, POSIX_FADV_DONTNEED), 0);
  ReadAhead ahead;
  for (uint64_t position = 0; position < 4 * kMiB; position += 64 << 10) {
    ahead.reader_is_at(file_.get(), position, kSize);
  }
  EXPECT_TRUE(comes_into_memory(0, 8 * kMiB));
}

TEST_F(ReadAheadTest, ReadsNothingWhereItsReaderEnds) {
  ReadAhead ahead;
  for (int calls = 0; calls < 100; ++calls) ahead.reader_is_at(file_.get(), kMiB, kMiB);
  EXPECT_EQ(in_memory(0, kSize), 0u);
}

}  // namespace
}  // namespace ckptfs::io

#include "io/lease.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::pattern;

class LeaseTest : public testing::XfsTest {
 protected:
  void SetUp() override {
    ignore_lease_signals();
    XfsTest::SetUp();
    if (IsSkipped()) return;
    file("file", pattern(8192, 1));
    probe_ = open(O_RDONLY);
  }
  Fd open(int flags) const {
    auto fd = open_at(AT_FDCWD, path("file"), flags);
    EXPECT_OK(fd);
    return fd ? std::move(fd).value() : Fd();
  }
  bool writer() const {
    const auto answer = has_writer(probe_.get());
    EXPECT_OK(answer);
    return answer && answer.value();
  }
  Fd probe_;
};

TEST_F(LeaseTest, NobodyElse) { EXPECT_FALSE(writer()); }

TEST_F(LeaseTest, AReaderIsNoWriter) {
  const Fd reader = open(O_RDONLY);
  EXPECT_FALSE(writer());
}

TEST_F(LeaseTest, AWriterIsSeenUntilItCloses) {
  Fd writing = open(O_RDWR);
  EXPECT_TRUE(writer());
  writing.reset();
  EXPECT_FALSE(writer());
}

TEST_F(LeaseTest, AMappingWhoseDescriptorIsClosedIsAWriter) {
  Fd writing = open(O_RDWR);
  void* mapping = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, writing.get(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  writing.reset();
  EXPECT_TRUE(writer());
  static_cast<char*>(mapping)[0] = 'x';
  EXPECT_TRUE(writer());
  ASSERT_EQ(::munmap(mapping, 8192), 0);
  EXPECT_FALSE(writer());
}

TEST_F(LeaseTest, AReadOnlyMappingIsNoWriter) {
  Fd reading = open(O_RDONLY);
  void* mapping = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, reading.get(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  reading.reset();
  EXPECT_FALSE(writer());
  ::munmap(mapping, 8192);
}

TEST_F(LeaseTest, TheProbeLeavesNoLease) {
  EXPECT_FALSE(writer());
  EXPECT_EQ(::fcntl(probe_.get(), F_GETLEASE), F_UNLCK);
  // this would fail with EWOULDBLOCK if a lease were left
  const auto opened = open_at(AT_FDCWD, path("file"), O_RDWR | O_NONBLOCK);
  EXPECT_OK(opened);
}

TEST_F(LeaseTest, ErrorsAreNoAnswer) { EXPECT_ERRNO(EBADF, has_writer(-1)); }

}  // namespace
}  // namespace ckptfs::io

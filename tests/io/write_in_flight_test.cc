// Writes that run in the kernel while their thread does something else.
#include "io/write_in_flight.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "io/fault.h"
#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

class WriteInFlightTest : public ::testing::Test {
 protected:
  testing::ScratchFolder folder_;
  Fd file_{::open(folder_.path("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  WriteInFlight writing_;
};

TEST_F(WriteInFlightTest, WritesOneAfterAnother) {
  ASSERT_TRUE(file_);
  for (const char letter : {'a', 'b', 'c'}) {
    const std::vector<std::byte> data(8192, static_cast<std::byte>(letter));
    const auto begun = writing_.begin(file_.get(), data, (letter - 'a') * 4096);
    ASSERT_TRUE(begun) << begun.error().message();
    const auto written = writing_.finish();
    ASSERT_TRUE(written) << written.error().message();
    EXPECT_EQ(written.value(), data.size());
  }
  std::string content(20000, '\0');
  ASSERT_EQ(::pread(file_.get(), content.data(), content.size(), 0), 16384);
  EXPECT_EQ(content.substr(0, 16384), std::string(4096, 'a') + std::string(4096, 'b') + std::string(8192, 'c'));
}

TEST_F(WriteInFlightTest, ErrorsComeWhenItIsFinishedAndTheNextWriteWorks) {
  const std::vector<std::byte> data(10);
  const Fd read_only(::open(folder_.path("file").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(writing_.begin(read_only.get(), data, 0));
  const auto refused = writing_.finish();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value(), EBADF);
  ASSERT_TRUE(writing_.begin(file_.get(), data, 0));
  ASSERT_TRUE(writing_.finish());
}

#ifdef CKPTFS_FAULT_POINTS
TEST_F(WriteInFlightTest, WithoutARingBeginSaysWhy) {
  const std::vector<std::byte> data(10);
  set_fault("io_uring", "error:ENOSYS");
  const auto begun = writing_.begin(file_.get(), data, 0);
  set_fault("io_uring", "");
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().errno_value(), ENOSYS);
  ASSERT_TRUE(writing_.begin(file_.get(), data, 0));
  EXPECT_TRUE(writing_.finish());
}
#endif

}  // namespace
}  // namespace ckptfs::io

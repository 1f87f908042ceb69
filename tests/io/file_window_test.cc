#include "io/file_window.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "io/fd.h"
#include "io/sigbus.h"

namespace ckptfs::io {
namespace {

constexpr size_t kPage = 4096;

class FileWindowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = Fd(::memfd_create("window", MFD_CLOEXEC));
    ASSERT_TRUE(file_);
  }
  // Each page of the file begins with its number.
  void fill(size_t pages) {
    for (size_t page = 0; page < pages; ++page) {
      ASSERT_EQ(::pwrite(file_.get(), &page, sizeof page, static_cast<off_t>(page * kPage)), ssize_t{sizeof page});
    }
    ASSERT_EQ(::ftruncate(file_.get(), static_cast<off_t>(pages * kPage)), 0);
  }
  // Returns the number of the page at `offset`, or -1 if there is none.
  int64_t number_at(FileWindow& window, uint64_t offset, size_t size = kPage) {
    const auto there = window.at(file_.get(), offset, size);
    EXPECT_TRUE(there) << there.error().message();
    int64_t number = -1;
    const bool read = access_mapped([&] { std::memcpy(&number, there.value().data(), sizeof number); });
    return read ? number : -1;
  }
  Fd file_;
};

TEST_F(FileWindowTest, GoesThroughAFileInAnyOrderAndSize) {
  const size_t pages = 4 * FileWindow::kSize / kPage;
  fill(pages);
  FileWindow window;
  for (size_t page = 0; page < pages; page += 7) EXPECT_EQ(number_at(window, page * kPage), static_cast<int64_t>(page));
  EXPECT_EQ(number_at(window, 3 * kPage, 2 * FileWindow::kSize), 3);
  EXPECT_EQ(number_at(window, (pages - 1) * kPage), static_cast<int64_t>(pages - 1));
  EXPECT_EQ(number_at(window, 0), 0);
}

TEST_F(FileWindowTest, BehindTheEndOfTheFileThereIsNothing) {
  fill(8);
  FileWindow window;
  EXPECT_EQ(number_at(window, 7 * kPage), 7);
  ASSERT_EQ(::ftruncate(file_.get(), 0), 0);
  EXPECT_EQ(number_at(window, 7 * kPage), -1);
  EXPECT_EQ(number_at(window, 0), -1);
  fill(8);
  EXPECT_EQ(number_at(window, 7 * kPage), 7);
}

TEST_F(FileWindowTest, AClosedOneHoldsNothing) {
  fill(8);
  FileWindow window;
  EXPECT_EQ(number_at(window, 0), 0);
  window.close();
  file_ = Fd(::memfd_create("another", MFD_CLOEXEC));
  fill(2);
  EXPECT_EQ(number_at(window, kPage), 1);
}

using SigbusDeathTest = FileWindowTest;

TEST_F(SigbusDeathTest, OutsideOfAnAccessItEndsTheProcess) {
  FileWindow window;
  EXPECT_EQ(number_at(window, 0), -1);
  const auto there = window.at(file_.get(), 0, kPage);
  ASSERT_TRUE(there);
  EXPECT_DEATH(static_cast<void>(*static_cast<const volatile std::byte*>(there.value().data())), "");
}

}  // namespace
}  // namespace ckptfs::io

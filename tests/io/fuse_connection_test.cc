#include "io/fuse_connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mount.h>
#include <unistd.h>

#include "io/mount_table.h"
#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

// A FUSE mount that nobody serves: its first request waits in the descriptor until the connection is aborted.
class FuseConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    fuse_ = Fd(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (!fuse_) GTEST_SKIP() << "needs /dev/fuse";
    const std::string options = "fd=" + std::to_string(fuse_.get()) + ",rootmode=40000,user_id=0,group_id=0";
    ASSERT_EQ(::mount("nobody", folder_.path().c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()), 0);
    const auto table = mount_table();
    ASSERT_OK(table);
    const auto mount = mounted_at(table.value(), folder_.path());
    ASSERT_TRUE(mount);
    device_ = mount->device;
  }
  void TearDown() override {
    if (!device_.empty()) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool is_aborted() const {
    pollfd poll{fuse_.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&poll, 1, 0), 1);
    return (poll.revents & POLLERR) != 0;
  }

  testing::ScratchFolder folder_;
  Fd fuse_;
  std::string device_;
};

TEST_F(FuseConnectionTest, AnotherMountsConnectionIsLeftAlone) {
  EXPECT_ERRNO(ENOENT, abort_connection(device_, [] { return false; }));
  EXPECT_FALSE(is_aborted());
  EXPECT_OK(abort_connection(device_, [] { return true; }));
  EXPECT_TRUE(is_aborted());
}

}  // namespace
}  // namespace ckptfs::io

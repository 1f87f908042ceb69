#include "io/holders.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <set>

#include "io/fd.h"
#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::ScratchFolder;

TEST(HoldersTest, OfAnOpenFileAndOfAMapping) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
  using Ways = std::set<std::string>;
  const ScratchFolder folder;
  ASSERT_EQ(::mount("held", folder.path().c_str(), "tmpfs", 0, "size=64k"), 0);
  const auto mount = mounted_at(mount_table().value(), folder.path()).value();
  const auto held = [&mount] {
    Ways ways;
    for (const Holder& holder : find_holders(mount, 20)) {
      if (holder.pid == ::getpid()) ways.insert(holder.how + " " + holder.path);
    }
    return ways;
  };
  EXPECT_EQ(held(), Ways());
  auto fd = open_at(AT_FDCWD, folder.path("file"), O_RDWR | O_CREAT);
  EXPECT_EQ(held(), Ways{"open " + folder.path("file")});
  EXPECT_EQ(::ftruncate(fd.value().get(), 4096), 0);
  void* const mapping = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.value().get(), 0);
  fd.value().reset();
  EXPECT_EQ(held(), Ways{"mapped " + folder.path("file")});
  ::munmap(mapping, 4096);
  EXPECT_EQ(held(), Ways());
  EXPECT_EQ(::umount(folder.path().c_str()), 0);
}

}  // namespace
}  // namespace ckptfs::io

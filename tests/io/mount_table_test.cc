#include "io/mount_table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::ScratchFolder;

bool among_holders(const std::string& folder) {
  const auto holders = holders_of(folder);
  const std::string mine = "(pid " + std::to_string(::getpid()) + ")";
  return std::any_of(holders.begin(), holders.end(), [&](const std::string& holder) { return holder.ends_with(mine); });
}

TEST(MountTableTest, HasProc) {
  const auto table = mount_table();
  ASSERT_OK(table);
  const auto found = std::find_if(table.value().begin(), table.value().end(),
                                  [](const MountEntry& entry) { return entry.mountpoint == "/proc"; });
  ASSERT_NE(found, table.value().end());
  EXPECT_EQ(found->type, "proc");
}

TEST(MountTableTest, UnescapesNames) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
  const ScratchFolder folder;
  const std::string mountpoint = folder.path("a b\\040c");
  ASSERT_EQ(::mkdir(mountpoint.c_str(), 0700), 0);
  ASSERT_EQ(::mount("the source", mountpoint.c_str(), "tmpfs", 0, "size=64k"), 0);
  const auto table = mount_table();
  EXPECT_EQ(::umount(mountpoint.c_str()), 0);
  ASSERT_OK(table);
  const auto found = std::find_if(table.value().begin(), table.value().end(),
                                  [&](const MountEntry& entry) { return entry.mountpoint == mountpoint; });
  ASSERT_NE(found, table.value().end());
  EXPECT_EQ(found->source, "the source");
  EXPECT_EQ(found->type, "tmpfs");
}

TEST(MountTableTest, AFolderContainsItselfAndWhatLiesBelowIt) {
  EXPECT_TRUE(lies_within("/a", "/a"));
  EXPECT_TRUE(lies_within("/a/b/c", "/a"));
  EXPECT_FALSE(lies_within("/ab", "/a")) << "a prefix is not a folder";
  EXPECT_FALSE(lies_within("/", "/a"));
}

TEST(MountTableTest, TheRootContainsEverything) {
  EXPECT_TRUE(lies_within("/", "/"));
  EXPECT_TRUE(lies_within("/a/b", "/"));
  EXPECT_FALSE(lies_within("socket:[1]", "/"));
}

TEST(HoldersTest, OfAnOpenFile) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkdir(folder.path("held").c_str(), 0700), 0);
  EXPECT_FALSE(among_holders(folder.path("held")));
  auto fd = open_at(AT_FDCWD, folder.path("held/file"), O_RDWR | O_CREAT);
  ASSERT_OK(fd);
  EXPECT_TRUE(among_holders(folder.path("held")));
  EXPECT_FALSE(among_holders(folder.path("hel"))) << "a prefix is not a folder";
}

TEST(HoldersTest, OfTheRoot) { EXPECT_TRUE(among_holders("/")); }

TEST(HoldersTest, OfAMapping) {
  const ScratchFolder folder;
  auto fd = open_at(AT_FDCWD, folder.path("file"), O_RDWR | O_CREAT);
  ASSERT_OK(fd);
  ASSERT_EQ(::ftruncate(fd.value().get(), 4096), 0);
  void* mapping = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.value().get(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  fd.value().reset();
  EXPECT_TRUE(among_holders(folder.path()));
  ::munmap(mapping, 4096);
  EXPECT_FALSE(among_holders(folder.path()));
}

}  // namespace
}  // namespace ckptfs::io

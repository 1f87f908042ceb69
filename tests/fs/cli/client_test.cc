#include "fs/cli/client.h"

#include <gtest/gtest.h>

#include "fs/cli/doctor_checks.h"

namespace ckptfs::fs::cli {
namespace {

constexpr const char* kOne =
    "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    "this line is not one\n"
    "40 22 0:44 / /mnt/a\\040b rw,nosuid - fuse.ckptfs /data/st\\134ore rw,user_id=0\n"
    "41 22 0:44 /steps /bound rw shared:7 master:2 - fuse.ckptfs /data/store rw\n"
    "42 40 0:50 / /mnt/a\\040b/inner rw - tmpfs none rw\n";
constexpr const char* kSecond = "43 22 0:60 / /ckpt rw - fuse.ckptfs /data/second rw\n";

std::vector<MountEntry> mounts(const std::string& text = kOne) { return io::parse_mount_table(text); }

TEST(Mountinfo, ParsesFieldsAndEscapes) {
  const auto entries = mounts();
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[1].mountpoint, "/mnt/a b");
  EXPECT_EQ(entries[1].source, "/data/st\\ore");
  EXPECT_EQ(entries[1].device, "0:44");
  EXPECT_TRUE(is_ckptfs(entries[1]));
  EXPECT_EQ(entries[2].root, "/steps");
  EXPECT_EQ(entries[3].parent, 40);
  EXPECT_EQ(mounted_at(entries, "/bound")->id, 41);
  EXPECT_FALSE(mounted_at(entries, "/nowhere"));
  EXPECT_EQ(mounts_on(entries, entries[1]), std::vector<std::string>{"/mnt/a b/inner"});
}

TEST(Mountinfo, LiesWithinGoesByWholeNames) {
  EXPECT_TRUE(io::lies_within("/a/b", "/a"));
  EXPECT_TRUE(io::lies_within("/a", "/a"));
  EXPECT_TRUE(io::lies_within("/a", "/"));
  EXPECT_FALSE(io::lies_within("/ab", "/a"));
  EXPECT_FALSE(io::lies_within("/", "/a"));
}

TEST(Client, WithoutAPathTheOnlyMountIsMeant) {
  const auto target = find_target(mounts(), std::nullopt);  // its bind mount does not count as a second mount
  ASSERT_TRUE(target);
  EXPECT_EQ(target.value().mount.mountpoint, "/mnt/a b");
  EXPECT_EQ(target.value().path, "/");
}

TEST(Client, SeveralMountsAreNamed) {
  const auto target = find_target(mounts(std::string(kOne) + kSecond), std::nullopt);
  ASSERT_FALSE(target);
  EXPECT_NE(target.error().message().find("/mnt/a b"), std::string::npos);
  EXPECT_NE(target.error().message().find("/ckpt"), std::string::npos);
}

TEST(Client, AStoreComesBeforeAMountedRemote) {
  const std::string remote = "44 22 0:61 / /remote ro - fuse.ckptfs s3://bucket/run7 ro\n";
  const auto target = find_target(mounts(kOne + remote), std::nullopt);
  ASSERT_TRUE(target);
  EXPECT_EQ(target.value().mount.mountpoint, "/mnt/a b");
  EXPECT_EQ(find_target(mounts(remote), std::nullopt).value().mount.mountpoint, "/remote");
}

TEST(Client, NoMountSaysHowToMakeOne) {
  const auto target = find_target(std::vector<MountEntry>{}, std::nullopt);
  ASSERT_FALSE(target);
  EXPECT_NE(target.error().message().find("ckptfs mount"), std::string::npos);
}

TEST(Client, PathsAreToldAsTheMountKnowsThem) {
  EXPECT_EQ(find_target(mounts(), "/mnt/a b").value().path, "/");
  EXPECT_EQ(find_target(mounts(), "/mnt/a b/steps/x").value().path, "/steps/x");
  EXPECT_EQ(find_target(mounts(), "/bound/x").value().path, "/steps/x");
}

TEST(Client, WhatIsNotOnAMountIsRefused) {
  EXPECT_FALSE(find_target(mounts(), "/home"));
  EXPECT_FALSE(find_target(mounts(), "/mnt/a bc"));
  EXPECT_FALSE(find_target(mounts(), "/mnt/a b/inner/x"));  // another file system is mounted there
}

TEST(Doctor, KernelAndLibfuseVersions) {
  EXPECT_EQ(check_kernel("6.12.3-amd64").verdict, Verdict::ok);
  EXPECT_EQ(check_kernel("7.0").verdict, Verdict::ok);
  EXPECT_EQ(check_kernel("6.8.0-45-generic").verdict, Verdict::warn);
  EXPECT_EQ(check_kernel("strange").verdict, Verdict::warn);
  EXPECT_EQ(check_libfuse("3.17.2").verdict, Verdict::ok);
  EXPECT_EQ(check_libfuse("3.14.0").verdict, Verdict::fail);
}

}  // namespace
}  // namespace ckptfs::fs::cli

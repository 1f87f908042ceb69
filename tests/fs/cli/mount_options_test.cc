#include "fs/cli/mount_options.h"

#include <gtest/gtest.h>

#include "fs/cli/mount_plan.h"

namespace ckptfs::fs::cli {
namespace {

using Words = std::vector<std::string>;

TEST(MountOptions, Defaults) {
  const auto parsed = parse_mount_options({});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed.value().passthrough, PassthroughOption::automatic);
  EXPECT_EQ(parsed.value().odirect, OdirectOption::safe);
  EXPECT_FALSE(parsed.value().uid);
  EXPECT_EQ(parsed.value().quiet_seconds, 30u);
  EXPECT_TRUE(parsed.value().adopt);
}

TEST(MountOptions, SeveralListsTheLastWins) {
  const auto parsed =
      parse_mount_options({"passthrough=off,odirect=raw,uid=1000,adopt=on", "gid=7,quiet=0,passthrough=on,adopt=off"});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed.value().passthrough, PassthroughOption::on);
  EXPECT_EQ(parsed.value().odirect, OdirectOption::raw);
  EXPECT_EQ(parsed.value().uid, 1000u);
  EXPECT_EQ(parsed.value().gid, 7u);
  EXPECT_EQ(parsed.value().quiet_seconds, 0u);
  EXPECT_FALSE(parsed.value().adopt);
}

TEST(MountOptions, QuietTakesUnits) {
  EXPECT_EQ(parse_mount_options({"quiet=45s"}).value().quiet_seconds, 45u);
  EXPECT_EQ(parse_mount_options({"quiet=2m"}).value().quiet_seconds, 120u);
  EXPECT_EQ(parse_mount_options({"quiet=1h"}).value().quiet_seconds, 3600u);
  EXPECT_EQ(parse_mount_options({"scrub=2d"}).value().scrub_seconds, 2u * 86400);
  EXPECT_EQ(parse_mount_options({"scrub=2w"}).value().scrub_seconds, 14u * 86400);
}

TEST(MountOptions, WhatMountAndFstabAddIsIgnored) {
  EXPECT_TRUE(parse_mount_options({"rw,defaults,nofail,_netdev,noauto,dev,suid,x-systemd.requires=a.mount,,auto"}));
  EXPECT_TRUE(parse_mount_options({"nosuid,nodev,noatime,nodiratime,relatime,strictatime,lazytime"}));
}

TEST(MountOptions, WhatTheKernelKeeps) {
  EXPECT_FALSE(parse_mount_options({"noexec"}).value().read_only);
  EXPECT_TRUE(parse_mount_options({"noexec"}).value().no_exec);
  EXPECT_TRUE(parse_mount_options({"rw,ro"}).value().read_only);
  EXPECT_FALSE(parse_mount_options({"ro,rw"}).value().read_only);
}

TEST(MountOptions, RemountSaysWhyNot) {
  const auto parsed = parse_mount_options({"remount,ro"});
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message().find("umount"), std::string::npos);
}

class BadOption : public testing::TestWithParam<const char*> {};

TEST_P(BadOption, IsRefusedNamingItAndTheKnownOnes) {
  const auto parsed = parse_mount_options({GetParam()});
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().errno_value(), EINVAL);
  EXPECT_NE(parsed.error().message().find(GetParam()), std::string::npos);
  EXPECT_NE(parsed.error().message().find("odirect=safe|raw"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(MountOptions, BadOption,
                         testing::Values("passthrough", "passthrough=yes", "odirect=", "adopt=no", "uid=", "uid=-1",
                                         "uid=root", "gid=1x", "uid=4294967296", "quiet=", "quiet=s", "quiet=10y",
                                         "quiet=9999999h"));

TEST(MountOptions, FstabCallsBecomeTheMountCommand) {
  EXPECT_EQ(normalize_arguments({"/usr/bin/ckptfs", "/data/store", "/ckpt", "-o", "rw"}),
            (Words{"/usr/bin/ckptfs", "mount", "/data/store", "/ckpt", "-o", "rw"}));
  EXPECT_EQ(normalize_arguments({"/sbin/mount.ckptfs", "/s", "/m", "-n", "-sv", "-t", "fuse.ckptfs", "-o", "rw"}),
            (Words{"ckptfs", "mount", "/s", "/m", "-o", "rw"}));
  EXPECT_EQ(normalize_arguments({"ckptfs", "ls", "/ckpt"}), (Words{"ckptfs", "ls", "/ckpt"}));
  EXPECT_EQ(normalize_arguments({"ckptfs"}), (Words{"ckptfs"}));
}

MountPlan plan(const std::string& store, const std::string& mountpoint, const std::string& log = {}) {
  MountPlan result;
  result.store = store;
  result.mountpoint = mountpoint;
  result.log = log;
  return result;
}

TEST(MountPlan, NothingLiesOnItsOwnMount) {
  EXPECT_TRUE(check_nesting(plan("/data/store", "/ckpt", "/var/log/ckptfs.log")));
  EXPECT_TRUE(check_nesting(plan("/ckpt2", "/ckpt", "/ckpt.log")));
  EXPECT_FALSE(check_nesting(plan("/ckpt/store", "/ckpt")));
  EXPECT_FALSE(check_nesting(plan("/ckpt", "/ckpt")));
  EXPECT_FALSE(check_nesting(plan("/data", "/data/ckpt")));
  EXPECT_FALSE(check_nesting(plan("/data/store", "/ckpt", "/ckpt/log")));
  EXPECT_FALSE(check_nesting(plan("/data/store", "/")));
}

}  // namespace
}  // namespace ckptfs::fs::cli

#include "fs/open/permission.h"

#include <gtest/gtest.h>

namespace ckptfs::fs {
namespace {

meta::InodeRecord inode(uint32_t mode, uint32_t uid = 1000, uint32_t gid = 100) {
  meta::InodeRecord record;
  record.mode = mode;
  record.uid = uid;
  record.gid = gid;
  return record;
}

TEST(Permission, RootMayAll) { EXPECT_TRUE(may_access({0, 0, {}}, inode(0), kRead | kWrite | kSearch)); }

TEST(Permission, OwnerIsJudgedByOwnerBits) {
  EXPECT_TRUE(may_access({1000, 1, {}}, inode(0700), kRead | kWrite | kSearch));
  EXPECT_FALSE(may_access({1000, 1, {}}, inode(0500), kWrite));
}

TEST(Permission, FirstFittingClassDecidesEvenIfALaterOneWouldAllow) {
  EXPECT_FALSE(may_access({1000, 100, {}}, inode(0077), kRead));
  EXPECT_FALSE(may_access({1, 100, {}}, inode(0707), kRead));
}

TEST(Permission, PrimaryAndSupplementaryGroupsCount) {
  EXPECT_TRUE(may_access({1, 100, {}}, inode(0770), kWrite | kSearch));
  EXPECT_TRUE(may_access({1, 1, {5, 100}}, inode(0770), kWrite | kSearch));
  EXPECT_FALSE(may_access({1, 1, {5}}, inode(0770), kWrite));
}

TEST(Permission, AllThatIsWantedMustBeAllowed) {
  EXPECT_TRUE(may_access({1, 1, {}}, inode(0755), kRead | kSearch));
  EXPECT_FALSE(may_access({1, 1, {}}, inode(0755), kWrite | kSearch));
  EXPECT_FALSE(may_access({1, 1, {}}, inode(0754), kRead | kSearch));
}

TEST(Permission, FileTypeBitsDoNotMatter) { EXPECT_FALSE(may_access({1, 1, {}}, inode(S_IFDIR | 0750), kSearch)); }

}  // namespace
}  // namespace ckptfs::fs

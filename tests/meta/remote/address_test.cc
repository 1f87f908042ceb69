#include "meta/remote/address.h"

#include <gtest/gtest.h>

#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

std::string split(const std::string& address) {
  const auto parts = split_step(address);
  if (!parts) return "none";
  const std::string slot = parts.value().slot ? " " + std::to_string(*parts.value().slot) : "";
  return parts.value().url + " " + parts.value().step + slot;
}

TEST(Address, NamesAStep) {
  EXPECT_EQ(split("s3://bucket/run7/global_step100~2"), "s3://bucket/run7 global_step100~2");
  EXPECT_EQ(split("s3://bucket/a/b/step_1//"), "s3://bucket/a/b step_1");
  EXPECT_EQ(split("file:///lustre/run7/step_1"), "file:///lustre/run7 step_1");
  EXPECT_EQ(split("s3://bucket/run7/@1/step_1"), "s3://bucket/run7 step_1 1");
  EXPECT_EQ(split("file:///lustre/@12/step_1/"), "file:///lustre step_1 12");
  EXPECT_EQ(split("s3://bucket/@x/step_1"), "s3://bucket/@x step_1");
  EXPECT_EQ(split("s3://bucket/@/step_1"), "s3://bucket/@ step_1");
  EXPECT_EQ(split("s3://bucket/@99999999999/step_1"), "s3://bucket/@99999999999 step_1");
  for (const char* const address : {"s3://bucket", "s3://", "/lustre/run7/step_1", "step_1", ""}) {
    EXPECT_ERRNO(EINVAL, split_step(address)) << address;
  }
}

TEST(Address, IsOfARemote) {
  EXPECT_TRUE(is_remote_address("s3://bucket/run7"));
  EXPECT_TRUE(is_remote_address("file:///lustre"));
  EXPECT_FALSE(is_remote_address("/lustre"));
  EXPECT_FALSE(is_remote_address("s3:/bucket"));
}

TEST(Address, HasNoSecret) {
  EXPECT_ERRNO(EINVAL, refuse_secrets("s3://KEY:SECRET@bucket/run7", "the address"));
  EXPECT_OK(refuse_secrets("s3://bucket/run7/@1/step_1", "the address"));
  EXPECT_OK(refuse_secrets("file:///a@b/run7", "the address"));
}

TEST(Address, OfAFolderThatIsNotThere) {
  const io::testing::ScratchFolder folder;
  EXPECT_OK(check_folder_of("file://" + folder.path()));
  EXPECT_ERRNO(ENOENT, check_folder_of("file://" + folder.path("none")));
  EXPECT_OK(check_folder_of("s3://bucket/run7"));
}

}  // namespace
}  // namespace ckptfs::meta::remote

#include "io/objects/open_object_store.h"

#include <gtest/gtest.h>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

TEST(ObjectStoreTest, KeysAreChecked) {
  for (const char* key :
       {"a", "step_7.a1/rank0/a.bin", ".ckptfs/steps/step~2/1", "a b/\xc3\xa4", "a/.metadata", "a/..b"}) {
    EXPECT_OK(check_key(key)) << key;
  }
  for (const char* key :
       {"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", ".hidden", ".hidden/a", ".ckptfs-uploads/a", "a/."}) {
    EXPECT_ERRNO(EINVAL, check_key(key)) << key;
  }
  EXPECT_ERRNO(EINVAL, check_key(std::string_view("a\0b", 3)));
}

TEST(ObjectStoreTest, AddressesAreChecked) {
  for (const char* url : {"", "run7", "/mnt/run7", "http://host/run7", "s3://", "s3://bucket", "s3://bucket/",
                          "s3:///run7", "s3://bucket/..", "s3://bucket/a//b", "file://", "file://mnt/run7"}) {
    const auto opened = open_object_store(url, {});
    EXPECT_ERRNO(EINVAL, opened) << url;
    EXPECT_NE(opened.error().message().find("s3://BUCKET/PREFIX"), std::string::npos) << opened.error().message();
  }
  const auto folder = open_object_store("file:///mnt/run7/", {});
  ASSERT_OK(folder);
  EXPECT_EQ(folder.value()->url(), "file:///mnt/run7");
}

TEST(ObjectStoreTest, EndpointsAreChecked) {
  for (const char* endpoint : {"host", "ftp://host", "https://", "https://host/path"}) {
    S3Settings settings;
    settings.endpoint = endpoint;
    EXPECT_ERRNO(EINVAL, open_object_store("s3://bucket/run7", settings)) << endpoint;
  }
}

}  // namespace
}  // namespace ckptfs::io

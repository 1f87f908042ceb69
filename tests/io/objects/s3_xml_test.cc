#include "io/objects/s3_xml.h"

#include <gtest/gtest.h>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

std::string list_of(const std::string& inside) {
  return R"(<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">)" +
         inside + "</ListBucketResult>";
}

TEST(S3XmlTest, AListIsRead) {
  const auto list = read_s3_list(
      list_of("<Name>bucket</Name><EncodingType>url</EncodingType><IsTruncated>true</"
              "IsTruncated><NextContinuationToken>abc=</NextContinuationToken>"
              "<Contents><Key>run7/a%2Fb+c%25</Key><LastModified>2015-08-30T12:36:00.000Z</LastModified><Size>42</"
              "Size></Contents>"
              "<Contents><Key>run7/b</Key><Size>0</Size><Owner><ID>Key</ID></Owner></Contents>"));
  ASSERT_OK(list);
  EXPECT_EQ(list.value().next, "abc=");
  ASSERT_EQ(list.value().objects.size(), 2U);
  EXPECT_EQ(list.value().objects[0].key, "run7/a/b c%");
  EXPECT_EQ(list.value().objects[0].size, 42U);
  EXPECT_EQ(std::chrono::system_clock::to_time_t(list.value().objects[0].changed), 1440938160);
  EXPECT_EQ(list.value().objects[1].key, "run7/b");
}

TEST(S3XmlTest, AnEmptyListIsOne) {
  const auto list = read_s3_list(list_of("<IsTruncated>false</IsTruncated>"));
  ASSERT_OK(list);
  EXPECT_TRUE(list.value().objects.empty());
}

TEST(S3XmlTest, WhatIsNoListOrIsCutShortIsRefused) {
  const std::string whole = list_of("<IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>1</Size></Contents>");
  ASSERT_OK(read_s3_list(whole));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_ERRNO(EPROTO, read_s3_list(std::string_view(whole).substr(0, length))) << length;
  }
  EXPECT_ERRNO(EPROTO, read_s3_list("<Other></Other>"));
  EXPECT_ERRNO(EPROTO, read_s3_list(list_of("<IsTruncated>true</IsTruncated>")));
  EXPECT_ERRNO(EPROTO, read_s3_list(list_of("")));
  EXPECT_ERRNO(EPROTO, read_s3_list(list_of("<IsTruncated>yes</IsTruncated>")));
  EXPECT_ERRNO(
      EPROTO,
      read_s3_list(list_of("<IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>-1</Size></Contents>")));
  EXPECT_ERRNO(
      EPROTO,
      read_s3_list(list_of("<IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>1x</Size></Contents>")));
}

TEST(S3XmlTest, KeysAreDecodedIfTheyAreEncoded) {
  const auto list =
      read_s3_list(list_of("<IsTruncated>false</IsTruncated><Contents><Key>a+b%41</Key><Size>1</Size></Contents>"));
  ASSERT_OK(list);
  EXPECT_EQ(list.value().objects.at(0).key, "a+b%41");
}

// Each would be a list but for what is hostile in it.
TEST(S3XmlTest, HostileOnesAreRefused) {
  const std::string end = "<IsTruncated>false</IsTruncated>";
  ASSERT_OK(read_s3_list(list_of(end)));
  std::string deep, back;
  for (int depth = 0; depth < 1000; ++depth) deep += "<a>", back += "</a>";
  EXPECT_ERRNO(EPROTO, read_s3_list(list_of(end + deep + back)));
  EXPECT_ERRNO(EPROTO, read_s3_list(list_of(end + "<Name>" + std::string(1 << 20, 'k') + "</Name>")));
  for (const char* entity : {R"(<!ENTITY a "ha">)", R"(<!ENTITY a SYSTEM "file:///etc/passwd">)"}) {
    const std::string declared = std::string("<!DOCTYPE l [") + entity + "]>";
    EXPECT_ERRNO(EPROTO, read_s3_list(declared + "<ListBucketResult>" + end + "</ListBucketResult>")) << entity;
  }
}

TEST(S3XmlTest, AFailureIsRead) {
  const S3Failure failure = read_s3_failure(
      "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>none</Message><Region>eu-west-1</Region></Error>");
  EXPECT_EQ(failure.code, "NoSuchKey");
  EXPECT_EQ(failure.message, "none");
  EXPECT_EQ(failure.region, "eu-west-1");
  EXPECT_EQ(read_s3_failure("<html>502 Bad Gateway").code, "");
}

TEST(S3XmlTest, AnElementIsFoundByItsPath) {
  const std::string xml =
      R"(<?xml version="1.0"?><CopyObjectResult><ETag>&quot;abc&quot;</ETag><x><ETag>no</ETag></x></CopyObjectResult>)";
  EXPECT_EQ(read_s3_text(xml, "/CopyObjectResult/ETag"), "\"abc\"");
  EXPECT_EQ(read_s3_text(xml, "/CopyObjectResult/None"), "");
  EXPECT_EQ(read_s3_text(xml.substr(0, xml.size() - 1), "/CopyObjectResult/ETag"), "") << "it is cut short";
}

TEST(S3XmlTest, UploadsAndPiecesAreRead) {
  const auto uploads = read_s3_uploads(
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>b</NextKeyMarker>"
      "<NextUploadIdMarker>2</NextUploadIdMarker><Upload><Key>run7/a</Key><UploadId>1</UploadId>"
      "<Initiated>2015-08-30T12:36:00.000Z</Initiated></Upload></ListMultipartUploadsResult>");
  ASSERT_OK(uploads);
  ASSERT_EQ(uploads.value().uploads.size(), 1U);
  EXPECT_EQ(uploads.value().uploads[0].key, "run7/a");
  EXPECT_EQ(uploads.value().uploads[0].id, "1");
  EXPECT_EQ(std::chrono::system_clock::to_time_t(uploads.value().uploads[0].begun), 1440938160);
  EXPECT_EQ(uploads.value().next_key, "b");
  EXPECT_EQ(uploads.value().next_id, "2");
  const auto pieces = read_s3_pieces(
      "<ListPartsResult><IsTruncated>false</IsTruncated><NextPartNumberMarker>2</NextPartNumberMarker>"
      "<Part><LastModified>2015-08-30T12:36:00.000Z</LastModified></Part>"
      "<Part><LastModified>2015-08-30T12:35:00.000Z</LastModified></Part></ListPartsResult>");
  ASSERT_OK(pieces);
  EXPECT_EQ(std::chrono::system_clock::to_time_t(pieces.value().newest), 1440938160);
  EXPECT_EQ(pieces.value().next, "");
  EXPECT_ERRNO(EPROTO, read_s3_uploads("<Error/>"));
  EXPECT_ERRNO(EPROTO, read_s3_pieces("<Error/>"));
}

}  // namespace
}  // namespace ckptfs::io

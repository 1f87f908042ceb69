#include "io/objects/s3_signature.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ckptfs::io {
namespace {

std::string header(const std::vector<std::string>& headers, const std::string& name) {
  const auto found =
      std::ranges::find_if(headers, [&](const std::string& line) { return line.starts_with(name + ": "); });
  return found == headers.end() ? "" : found->substr(name.size() + 2);
}

// Made with botocore 1.44.8: S3SigV4Auth without payload_signing_enabled, at this time.
TEST(S3SignatureTest, IsThatOfBotocore) {
  const S3Credentials credentials{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  const S3Request request{"GET",
                          "bucket.s3.eu-west-1.amazonaws.com",
                          "/run7/a%20b",
                          {{"prefix", "a/b c"}, {"list-type", "2"}},
                          {{"range", "bytes=0-9"}}};
  const auto headers =
      signed_headers(request, credentials, "eu-west-1", std::chrono::system_clock::from_time_t(1440938160));
  EXPECT_EQ(header(headers, "x-amz-date"), "20150830T123600Z");
  EXPECT_EQ(header(headers, "range"), "bytes=0-9");
  EXPECT_EQ(header(headers, "x-amz-security-token"), "");
  EXPECT_EQ(header(headers, "authorization"),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/eu-west-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=85c43275b59382007cd387f0d5928fe0ae671392b35e657b7cb71c7c6678a0c8");
}

TEST(S3SignatureTest, AnythingButPlainCharactersIsEncoded) {
  EXPECT_EQ(percent_encoded("a/b c+~-._é", true), "a/b%20c%2B~-._%C3%A9");
  EXPECT_EQ(percent_encoded("a/b", false), "a%2Fb");
  EXPECT_EQ(query_text({{"b", "x=y"}, {"a", ""}}), "a=&b=x%3Dy");
}

TEST(S3SignatureTest, ASessionIsPartOfIt) {
  const S3Credentials credentials{"key", "secret", "token"};
  const auto headers =
      signed_headers({"GET", "host", "/", {}}, credentials, "r", std::chrono::system_clock::from_time_t(0));
  EXPECT_EQ(header(headers, "x-amz-security-token"), "token");
  EXPECT_NE(header(headers, "authorization").find("x-amz-security-token"), std::string::npos);
}

}  // namespace
}  // namespace ckptfs::io

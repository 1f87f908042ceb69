#include "io/objects/s3_credentials.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

// With a home of its own, and none of the variables that the AWS tools know.
class S3CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"}) {
      ::unsetenv(name);
    }
    ::setenv("AWS_CONFIG_FILE", folder_.path("config").c_str(), 1);
    ::setenv("AWS_SHARED_CREDENTIALS_FILE", folder_.path("credentials").c_str(), 1);
    ::setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
  }
  void TearDown() override {
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
                             "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}) {
      ::unsetenv(name);
    }
  }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_.path(name)) << text; }
  Result<S3Credentials> find(const std::string& profile = {}) {
    HttpClient http("");
    return S3CredentialSource(http, profile).get({});
  }

  const testing::ScratchFolder folder_;
};

TEST_F(S3CredentialsTest, NoneAreAnErrorThatSaysWhatToDo) {
  const auto found = find();
  EXPECT_ERRNO(EACCES, found);
  EXPECT_NE(found.error().message().find("AWS_ACCESS_KEY_ID"), std::string::npos);
}

TEST_F(S3CredentialsTest, OfTheEnvironmentComeFirst) {
  write("credentials", "[default]\naws_access_key_id = file\naws_secret_access_key = s\n");
  EXPECT_EQ(find().value().access_key, "file");
  ::setenv("AWS_ACCESS_KEY_ID", "environment", 1);
  EXPECT_EQ(find().value().access_key, "file") << "half of a pair is none";
  ::setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
  ::setenv("AWS_SESSION_TOKEN", "t", 1);
  EXPECT_EQ(find().value().access_key, "environment");
  EXPECT_EQ(find().value().session_token, "t");
  EXPECT_EQ(find("default").value().access_key, "file") << "a profile by name";
}

TEST_F(S3CredentialsTest, ProfilesAreReadFromBothFiles) {
  write(
      "config",
      "# a comment\n[profile team]\nregion = eu-west-1\ns3 =\n  aws_access_key_id = nested\naws_access_key_id=config\n"
      "aws_secret_access_key=s\n[profile other]\nregion=x\n");
  EXPECT_EQ(read_aws_profile("team").value()["region"], "eu-west-1");
  EXPECT_EQ(find("team").value().access_key, "config");
  write("credentials", "[team]\naws_access_key_id = credentials\naws_secret_access_key = s2\n; end\n");
  EXPECT_EQ(find("team").value().secret_key, "s2");
  ::setenv("AWS_PROFILE", "team", 1);
  EXPECT_EQ(find().value().access_key, "credentials");
  EXPECT_ERRNO(EACCES, find("other"));
  EXPECT_ERRNO(EACCES, find("nobody"));
  write("config", "[profile default]\naws_access_key_id = d\naws_secret_access_key = s\n");
  EXPECT_EQ(find("default").value().access_key, "d");
}

TEST_F(S3CredentialsTest, KeysOfTwoFilesAreNotMixed) {
  write("config", "[default]\naws_access_key_id=a\naws_secret_access_key=b\naws_session_token=old\nregion=r\n");
  write("credentials", "[default]\naws_access_key_id=c\naws_secret_access_key=d\n");
  EXPECT_EQ(find().value().access_key, "c");
  EXPECT_EQ(find().value().session_token, "");
  EXPECT_EQ(read_aws_profile("").value()["region"], "r");
}

TEST_F(S3CredentialsTest, WhatIsNotReadIsRefusedByName) {
  for (const char* setting : {"role_arn", "sso_session", "sso_start_url", "web_identity_token_file"}) {
    write("config", std::string("[default]\naws_access_key_id=a\naws_secret_access_key=b\n") + setting + "=x\n");
    const auto found = find();
    EXPECT_ERRNO(EACCES, found);
    EXPECT_NE(found.error().message().find(setting), std::string::npos) << found.error().message();
  }
  write("config", "");
  ::setenv("AWS_ROLE_ARN", "x", 1);
  const auto found = find();
  ::unsetenv("AWS_ROLE_ARN");
  EXPECT_ERRNO(EACCES, found);
  EXPECT_NE(found.error().message().find("AWS_ROLE_ARN"), std::string::npos);
}

TEST_F(S3CredentialsTest, CharactersThatBreakAHeaderAreRefused) {
  write("config",
        "[default]\ncredential_process = echo '{\"AccessKeyId\": \"k\\nX-Header: 1\", \"SecretAccessKey\": \"s\"}'\n");
  EXPECT_ERRNO(EACCES, find());
}

TEST_F(S3CredentialsTest, AProcessThatDoesNotEndHoldsNobodyPastTheLimits) {
  write("config", "[default]\ncredential_process = sleep 30\n");
  HttpClient http("");
  S3CredentialSource source(http, "");
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::jthread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] { EXPECT_FALSE(source.get(RequestLimits::within(std::chrono::seconds(1)))); });
  }
  threads.clear();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(15));
}

TEST_F(S3CredentialsTest, ATokenGoesToNobodyElse) {
  ::setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1.example.org/credentials", 1);
  ::setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "token", 1);
  const auto found = find();
  ::unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  ::unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  EXPECT_ERRNO(EACCES, found);
  EXPECT_NE(found.error().message().find("AWS_CONTAINER_CREDENTIALS_FULL_URI"), std::string::npos);
}

TEST_F(S3CredentialsTest, AProcessIsAsked) {
  write("config",
        "[default]\ncredential_process = echo '{\"Version\": 1, \"AccessKeyId\": \"p\", \"SecretAccessKey\": \"s\", "
        "\"SessionToken\": \"t\", \"Expiration\": \"2030-01-02T03:04:05Z\"}'\n");
  const auto found = find();
  ASSERT_OK(found);
  EXPECT_EQ(found.value().access_key, "p");
  EXPECT_EQ(found.value().session_token, "t");
  EXPECT_EQ(std::chrono::system_clock::to_time_t(found.value().expires), 1893553445);
  for (const char* command : {"false", "echo hello", "echo '{}'", "yes"}) {
    write("config", std::string("[default]\ncredential_process = ") + command + "\n");
    EXPECT_ERRNO(EACCES, find()) << command;
  }
}

TEST_F(S3CredentialsTest, ThoseThatAreKnownServeWhenTheyCannotBeRenewed) {
  const std::time_t soon = std::time(nullptr) + 120;  // within the five minutes before they expire
  char end[32];
  std::tm parts{};
  std::strftime(end, sizeof(end), "%Y-%m-%dT%H:%M:%SZ", ::gmtime_r(&soon, &parts));
  write("config",
        std::string("[default]\ncredential_process = echo '{\"AccessKeyId\": \"k\", \"SecretAccessKey\": \"s\", "
                    "\"Expiration\": \"") +
            end + "\"}'\n");
  HttpClient http("");
  S3CredentialSource source(http, "");
  EXPECT_EQ(source.get({}).value().access_key, "k");
  write("config", "[default]\ncredential_process = false\n");
  EXPECT_EQ(source.get({}).value().access_key, "k");
  source.forget();
  EXPECT_ERRNO(EACCES, source.get({}));
}

TEST_F(S3CredentialsTest, TheyAreKeptUntilTheyExpire) {
  const auto with_end = [&](const std::string& key, const std::string& end) {
    write("config", "[default]\ncredential_process = echo '{\"AccessKeyId\": \"" + key +
                        "\", \"SecretAccessKey\": \"s\", \"Expiration\": \"" + end + "\"}'\n");
  };
  HttpClient http("");
  S3CredentialSource source(http, "");
  with_end("first", "2001-01-01T00:00:00Z");
  EXPECT_EQ(source.get({}).value().access_key, "first");
  with_end("second", "2090-01-01T00:00:00Z");
  EXPECT_EQ(source.get({}).value().access_key, "second");
  with_end("third", "2090-01-01T00:00:00Z");
  EXPECT_EQ(source.get({}).value().access_key, "second");
  source.forget();
  EXPECT_EQ(source.get({}).value().access_key, "third");
}

}  // namespace
}  // namespace ckptfs::io

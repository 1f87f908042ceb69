// Who we are to an S3 server, found as the AWS tools find it. The first of these that has anything counts:
//
//   environment   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   profile       of ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE): keys, or a
//                 credential_process. A profile that is asked for by name comes before the environment
//   container     AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI, with its token
//   instance      the metadata service of EC2, version 2, unless AWS_EC2_METADATA_DISABLED is true
//
// What they know beyond that (roles to assume, SSO, web identity) is refused by name, since going on would find
// somebody else's keys; `aws configure export-credentials` as a credential_process has them all.
// https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
#pragma once

#include <map>
#include <optional>
#include <string>

#include "io/mutex.h"
#include "io/objects/http_client.h"
#include "io/objects/s3_signature.h"
#include "io/result.h"

namespace ckptfs::io {

// A variable of the environment; empty if it is not set.
std::string aws_variable(const char* name);

// The settings of one profile of the AWS tools, from both files.
using AwsProfile = std::map<std::string, std::string>;

// `name`: empty for AWS_PROFILE, else "default". A file that is not there is empty. EACCES, in words, if a profile that
// was asked for by name is in neither file. The keys are those of one file, of the credentials before the config.
Result<AwsProfile> read_aws_profile(const std::string& name);

// Keeps what it has found until shortly before it expires. Thread-safe.
class S3CredentialSource {
 public:
  // `http` must outlive it. `profile`: as above.
  S3CredentialSource(HttpClient& http, std::string profile) : http_(http), profile_(std::move(profile)) {}

  // EACCES, in words, if there are none; EAGAIN if a service did not answer as it should. While a process (for at most
  // a minute) or a service is asked, other threads wait for what comes of it, as long as their limits allow.
  Result<S3Credentials> get(const RequestLimits& limits);
  // The server has refused them: the next get() looks again.
  void forget();

 private:
  Result<S3Credentials> find(const RequestLimits& limits) const;
  Result<std::optional<S3Credentials>> from_profile(const RequestLimits& limits) const;
  Result<std::optional<S3Credentials>> from_container(const RequestLimits& limits) const;
  Result<std::optional<S3Credentials>> from_instance(const RequestLimits& limits) const;
  // Of a service: what it says. Nothing: there is no such service here.
  Result<std::optional<std::string>> ask(const std::string& method, const std::string& url,
                                         std::vector<std::string> headers, const RequestLimits& limits) const;

  HttpClient& http_;
  const std::string profile_;
  Mutex mutex_;
  CondVar changed_;
  bool asking_ GUARDED_BY(mutex_) = false;  // a thread looks for them
  std::optional<S3Credentials> known_ GUARDED_BY(mutex_);
  Error failure_ GUARDED_BY(mutex_);  // of the last time that none were found
};

// Reads what a credential_process or a metadata service says. EACCES, in words, if there are no keys in it.
Result<S3Credentials> credentials_of_json(const std::string& text, const std::string& where);

}  // namespace ckptfs::io

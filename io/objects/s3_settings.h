// What may be said of an S3 store beside its address. What is empty is found as the AWS tools find it.
#pragma once

#include <cstdint>
#include <string>

namespace ckptfs::io {

struct S3Settings {
  std::string endpoint;     // "https://host:port"; empty: what AWS_ENDPOINT_URL_S3 or _URL says, else Amazon's
  std::string region;       // empty: what AWS_REGION or the profile says, else us-east-1
  std::string profile;      // of the AWS tools' files; empty: AWS_PROFILE, else "default"
  std::string authorities;  // file of the certificates to trust; empty: AWS_CA_BUNDLE, else the system's
  bool path_style = false;  // https://host/bucket/key instead of https://bucket.host/key; always so with an endpoint
  // Larger objects are copied there in pieces of this: AWS's limit is 5 GiB, and less is answered sooner.
  uint64_t most_at_once = uint64_t{1} << 30;
};

}  // namespace ckptfs::io

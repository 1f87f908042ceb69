// AWS Signature Version 4: the headers that prove to an S3 server who asks.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
//
// The body is not part of the signature ("UNSIGNED-PAYLOAD"): what is put has digests of its own, and TLS protects it
// on its way. Stateless; any thread.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ckptfs::io {

struct S3Credentials {
  std::string access_key, secret_key;
  std::string session_token;  // empty: none
  std::chrono::system_clock::time_point expires = std::chrono::system_clock::time_point::max();
};

struct S3Request {
  std::string method;
  std::string host;                              // as in the header Host, with the port
  std::string path;                              // percent-encoded, begins with '/'
  std::map<std::string, std::string> query;      // not encoded
  std::map<std::string, std::string> headers{};  // more headers to sign, names in lower case: "if-none-match", "range"
};

// Percent-encodes all but letters, digits and "-._~"; with `keep_slashes` also '/'.
std::string percent_encoded(std::string_view text, bool keep_slashes);
// "a=1&b=2", encoded, in the order of the names as bytes.
std::string query_text(const std::map<std::string, std::string>& query);
// Returns all headers to send: "Name: value".
std::vector<std::string> signed_headers(const S3Request& request, const S3Credentials& credentials,
                                        const std::string& region, std::chrono::system_clock::time_point now);

}  // namespace ckptfs::io

#include "io/objects/s3_signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <span>

#include "io/digest.h"

namespace ckptfs::io {
namespace {

constexpr const char* kUnsigned = "UNSIGNED-PAYLOAD";

std::string hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), out.data(), &length);
  return {reinterpret_cast<const char*>(out.data()), length};
}

std::string sha256(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned length = 0;
  EVP_Digest(text.data(), text.size(), out.data(), &length, EVP_sha256(), nullptr);
  return {reinterpret_cast<const char*>(out.data()), length};
}

std::string hexadecimal(std::string_view bytes) { return hex_of(std::as_bytes(std::span(bytes))); }

std::string time_text(std::chrono::system_clock::time_point now, const char* format) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), format, &parts)};
}

}  // namespace

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  std::string encoded;
  for (const unsigned char byte : text) {
    const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
                       byte == '-' || byte == '.' || byte == '_' || byte == '~' || (keep_slashes && byte == '/');
    if (plain) {
      encoded += static_cast<char>(byte);
    } else {
      char code[4];
      std::snprintf(code, sizeof(code), "%%%02X", byte);
      encoded += code;
    }
  }
  return encoded;
}

std::string query_text(const std::map<std::string, std::string>& query) {
  std::string text;
  for (const auto& [name, value] : query) {
    text += (text.empty() ? "" : "&") + percent_encoded(name, false) + "=" + percent_encoded(value, false);
  }
  return text;
}

std::vector<std::string> signed_headers(const S3Request& request, const S3Credentials& credentials,
                                        const std::string& region, std::chrono::system_clock::time_point now) {
  std::map<std::string, std::string> headers = request.headers;
  headers["host"] = request.host;
  headers["x-amz-content-sha256"] = kUnsigned;
  headers["x-amz-date"] = time_text(now, "%Y%m%dT%H%M%SZ");
  if (!credentials.session_token.empty()) headers["x-amz-security-token"] = credentials.session_token;
  std::string lines, names;
  for (const auto& [name, value] : headers) {
    lines += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical = request.method + "\n" + request.path + "\n" + query_text(request.query) + "\n" + lines +
                                "\n" + names + "\n" + kUnsigned;
  const std::string day = time_text(now, "%Y%m%d");
  const std::string scope = day + "/" + region + "/s3/aws4_request";
  const std::string to_sign =
      "AWS4-HMAC-SHA256\n" + headers["x-amz-date"] + "\n" + scope + "\n" + hexadecimal(sha256(canonical));
  const std::string key = hmac(hmac(hmac(hmac("AWS4" + credentials.secret_key, day), region), "s3"), "aws4_request");
  std::vector<std::string> to_send;
  for (const auto& [name, value] : headers) to_send.push_back(name + ": " + value);
  to_send.push_back("authorization: AWS4-HMAC-SHA256 Credential=" + credentials.access_key + "/" + scope +
                    ", SignedHeaders=" + names + ", Signature=" + hexadecimal(hmac(key, to_sign)));
  return to_send;
}

}  // namespace ckptfs::io

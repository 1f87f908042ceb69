#include "io/objects/s3_store.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "io/log.h"
#include "io/objects/s3_xml.h"
#include "io/printable.h"

namespace ckptfs::io {
namespace {

using SystemClock = std::chrono::system_clock;
// Codes that say other things than their status.
const std::array kRefused{"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "NoSuchBucket"};
const std::array kPassing{"RequestTimeout", "IncompleteBody", "BadDigest", "SlowDown"};
constexpr std::array kOfRegion{301L, 307L, 400L, 403L};  // what a server of another region answers

constexpr size_t kLongestList = size_t{16} << 20;  // of 1,000 objects
constexpr const char* kUsualRegion = "us-east-1";

std::string first_of(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts) {
    if (!text.empty()) return text;
  }
  return {};
}

Result<std::string> region_of(const S3Settings& settings) {
  const std::string known = first_of({settings.region, aws_variable("AWS_REGION"), aws_variable("AWS_DEFAULT_REGION")});
  if (!known.empty()) return known;
  TRY_ASSIGN(AwsProfile profile, read_aws_profile(settings.profile));
  return first_of({profile["region"], kUsualRegion});
}

bool is_one_of(const auto& list, const auto& value) { return std::ranges::find(list, value) != list.end(); }

std::string header_of(const HttpAnswer& answer, const std::string& name) {
  const auto found = answer.headers.find(name);
  return found == answer.headers.end() ? "" : found->second;
}

bool is_host_name(std::string_view bucket) { return bucket.find('.') == std::string_view::npos; }

// "bytes 5-9/20": where it begins, and the object's size.
struct Range {
  uint64_t begin = 0, size = 0;
};

bool read_range(std::string_view text, Range& range) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return false;
  const char* at = text.data() + kUnit.size();
  const char* const end = text.data() + text.size();
  const auto number = [&](uint64_t& into, char then) {
    const auto [after, error] = std::from_chars(at, end, into);
    if (error != std::errc() || (then != '\0' && (after == end || *after != then))) return false;
    at = after + (then == '\0' ? 0 : 1);
    return true;
  };
  uint64_t last = 0;
  return number(range.begin, '-') && number(last, '/') && number(range.size, '\0') && at == end;
}

}  // namespace

S3Store::S3Store(const std::string& bucket, std::string prefix, Place place, const S3Settings& settings)
    : url_("s3://" + bucket + "/" + prefix),
      prefix_(std::move(prefix) + "/"),
      place_(std::move(place)),
      http_(first_of({settings.authorities, aws_variable("AWS_CA_BUNDLE")})),
      credentials_(http_, settings.profile) {}

Result<std::unique_ptr<ObjectStore>> S3Store::open(const std::string& bucket, std::string prefix,
                                                   const S3Settings& settings) {
  TRY_ASSIGN(Place place, place_of(bucket, settings));
  return std::unique_ptr<ObjectStore>(new S3Store(bucket, std::move(prefix), std::move(place), settings));
}

Result<S3Store::Place> S3Store::place_of(const std::string& bucket, const S3Settings& settings) {
  Place place;
  TRY_ASSIGN(place.region, region_of(settings));
  std::string endpoint =
      first_of({settings.endpoint, aws_variable("AWS_ENDPOINT_URL_S3"), aws_variable("AWS_ENDPOINT_URL")});
  const bool in_path = settings.path_style || !endpoint.empty() || !is_host_name(bucket);
  if (endpoint.empty()) endpoint = "https://s3." + place.region + ".amazonaws.com";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const size_t scheme = endpoint.find("://");
  const std::string protocol = endpoint.substr(0, scheme);
  if (scheme == std::string::npos || (protocol != "https" && protocol != "http") || endpoint.size() == scheme + 3 ||
      endpoint.find('/', scheme + 3) != std::string::npos) {
    return Error(EINVAL, printable(endpoint) + ": no endpoint; it has the form https://HOST:PORT");
  }
  place.host = (in_path ? "" : bucket + ".") + endpoint.substr(scheme + 3);
  place.origin = protocol + "://" + place.host;
  place.path = in_path ? "/" + percent_encoded(bucket, false) + "/" : "/";
  return place;
}

Result<HttpAnswer> S3Store::ask(const std::string& method, const std::string& path, const Texts& query, Texts headers,
                                HttpRequest request, const std::string& name, const RequestLimits& limits) {
  TRY_ASSIGN(const S3Credentials credentials, with_name(name, credentials_.get(limits)));
  const auto now = SystemClock::now() + std::chrono::seconds(clock_offset_.load(std::memory_order_relaxed));
  request.method = method;
  request.url = place_.origin + path + (query.empty() ? "" : "?" + query_text(query));
  request.headers =
      signed_headers({method, place_.host, path, query, std::move(headers)}, credentials, place_.region, now);
  auto answer = http_.send(request, limits);
  if (!answer && answer.error().errno_value() == ECANCELED) return answer;
  return with_name(name, std::move(answer));
}

Error S3Store::error_of(const HttpAnswer& answer, const std::string& name) {
  const S3Failure failure = read_s3_failure(answer.text);
  std::string words = name + ": " + place_.host + " answers " + std::to_string(answer.status);
  if (!failure.code.empty()) words += " " + printable(failure.code);
  if (!failure.message.empty()) words += ": " + printable(failure.message);
  const std::string right_region = first_of({header_of(answer, "x-amz-bucket-region"), failure.region});
  if (!right_region.empty() && right_region != place_.region && is_one_of(kOfRegion, answer.status)) {
    return Error(EPROTO, words + ". The bucket is in region " + printable(right_region) + ": give --region");
  }
  if (failure.code == "RequestTimeTooSkewed") {
    const time_t theirs = ::curl_getdate(header_of(answer, "date").c_str(), nullptr);
    if (theirs > 0) {
      const int64_t offset = theirs - SystemClock::to_time_t(SystemClock::now());
      clock_offset_.store(offset, std::memory_order_relaxed);
      log::warn("{}: this machine's clock is {} s off the server's; requests are signed by the server's", url_, offset);
    }
    return Error(EAGAIN, words);
  }
  if (is_one_of(kPassing, failure.code)) return Error(EAGAIN, words);
  if (is_one_of(kRefused, failure.code)) {
    credentials_.forget();
    return Error(EACCES, words);
  }
  switch (answer.status) {
    case 401:
    case 403:
      credentials_.forget();
      return Error(EACCES, words);
    case 404:
      return Error(ENOENT, words);
    case 412:
      return Error(EEXIST, name + " is there already");
    case 408:
    case 409:
    case 425:
    case 429:
      return Error(EAGAIN, words);
    default:
      return Error(answer.status >= 500 && answer.status != 501 ? EAGAIN : EPROTO, words);
  }
}

Result<> S3Store::put(const std::string& key, const ObjectContent& content, PutMode mode, const RequestLimits& limits) {
  TRY(check_key(key));
  ++counts_.puts;
  const ObjectContent counted{content.size, [&](uint64_t offset, std::span<std::byte> buffer) -> Result<> {
                                TRY(content.read(offset, buffer));
                                counts_.bytes_sent += buffer.size();
                                return success();
                              }};
  HttpRequest request;
  request.content = &counted;
  const std::string name = url_ + "/" + key;
  Texts headers{{"content-type", "application/octet-stream"}};
  if (mode == PutMode::make) headers["if-none-match"] = "*";
  TRY_ASSIGN(const HttpAnswer answer, ask("PUT", path_of(key), {}, std::move(headers), request, name, limits));
  if (answer.status == 412 && answer.sent > 1) {  // the first one may have arrived
    return Error(ECONNRESET, name + ": the connection broke, and the reply is lost");
  }
  if (answer.status / 100 != 2) return error_of(answer, name);
  if (answer.status != 200 || header_of(answer, "etag").empty()) {
    return Error(EPROTO, name + ": " + place_.host + " answers " + std::to_string(answer.status) +
                             " without an ETag: it is no object store");
  }
  return success();
}

Result<size_t> S3Store::get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                            const RequestLimits& limits) {
  TRY(check_key(key));
  if (buffer.empty()) return size_t{0};
  ++counts_.gets;
  HttpRequest request;
  request.into = buffer;
  const std::string name = url_ + "/" + key;
  const std::string range = "bytes=" + std::to_string(offset) + "-" + std::to_string(offset + buffer.size() - 1);
  auto answer = ask("GET", path_of(key), {}, {{"range", range}}, request, name, limits);
  if (!answer && answer.error().errno_value() == EMSGSIZE) {
    return Error(EPROTO, name + ": " + place_.host + " answers with more than the range that was asked for");
  }
  if (!answer) return std::move(answer).error();
  if (answer.value().status == 416) return size_t{0};  // it ends before the offset
  if (answer.value().status / 100 != 2) return error_of(answer.value(), name);
  TRY_ASSIGN(const size_t got, check_range(answer.value(), offset, buffer.size(), name));
  counts_.bytes_received += got;
  return got;
}

// A server that knows no ranges sends all of an object. That is right if it was to begin at its begin, and if the
// server says how long it is: without that, a connection that breaks looks like the end.
Result<size_t> S3Store::check_range(const HttpAnswer& answer, uint64_t offset, size_t wanted,
                                    const std::string& name) const {
  const Error cut(ECONNRESET, name + ": " + place_.host + " sent less than was asked for");
  if (answer.status == 200 && offset == 0) {
    if (header_of(answer, "content-length") != std::to_string(answer.filled)) return cut;
    return answer.filled;
  }
  Range range;
  if (answer.status != 206 || !read_range(header_of(answer, "content-range"), range) || range.begin != offset) {
    return Error(EPROTO, name + ": " + place_.host + " does not honour ranges");
  }
  if (answer.filled != std::min<uint64_t>(wanted, range.size - std::min(range.size, offset))) return cut;
  return answer.filled;
}

Result<ObjectPage> S3Store::list(const std::string& prefix, const std::string& token, const RequestLimits& limits) {
  TRY(check_prefix(prefix));
  const std::string name = url_ + "/" + prefix;
  Texts query{{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix_ + prefix}};
  if (!token.empty()) query["continuation-token"] = token;
  ++counts_.lists;
  HttpRequest request;
  request.most_text = kLongestList;
  TRY_ASSIGN(const HttpAnswer answer, ask("GET", place_.path, query, {}, request, name, limits));
  if (answer.status / 100 != 2) return error_of(answer, name);
  auto page = answer.cut ? Error(EPROTO, "the list is too long") : read_s3_list(answer.text);
  if (!page) return with_name(name + ": " + place_.host, page.error());
  for (ObjectInfo& object : page.value().objects) {
    if (!object.key.starts_with(prefix_ + prefix)) {
      return Error(EPROTO, name + ": " + place_.host + " lists " + printable(object.key) + ", which is not asked for");
    }
    object.key.erase(0, prefix_.size());
  }
  // Markers of folders, as the console makes them, and whatever else others have put there.
  std::erase_if(page.value().objects, [](const ObjectInfo& object) { return !check_key(object.key); });
  return page;
}

Result<> S3Store::remove(const std::string& key, const RequestLimits& limits) {
  TRY(check_key(key));
  ++counts_.removes;
  const std::string name = url_ + "/" + key;
  TRY_ASSIGN(const HttpAnswer answer, ask("DELETE", path_of(key), {}, {}, {}, name, limits));
  if (answer.status / 100 == 2 || read_s3_failure(answer.text).code == "NoSuchKey") return success();
  return error_of(answer, name);
}

}  // namespace ckptfs::io

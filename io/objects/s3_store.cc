#include "io/objects/s3_store.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <tuple>
#include <vector>

#include "io/log.h"
#include "io/objects/s3_xml.h"
#include "io/printable.h"

namespace ckptfs::io {
namespace {

using SystemClock = std::chrono::system_clock;
// Codes that say other things than their status.
const std::array kRefused{"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "NoSuchBucket"};
const std::array kPassing{"RequestTimeout", "IncompleteBody", "BadDigest",
                          "SlowDown",       "InternalError",  "ServiceUnavailable"};
const std::array kMissing{"NoSuchUpload", "NoSuchKey", "InvalidPart", "InvalidPartOrder", "EntityTooSmall"};
constexpr std::array kOfRegion{301L, 307L, 400L, 403L};  // what a server of another region answers

constexpr size_t kLongestList = size_t{16} << 20;  // of 1,000 objects
constexpr const char* kUsualRegion = "us-east-1";
constexpr size_t kLongestKey = 1024;  // of S3

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

// By the server's clock.
SystemClock::time_point time_of_answer(const HttpAnswer& answer) {
  const time_t theirs = ::curl_getdate(header_of(answer, "date").c_str(), nullptr);
  return theirs > 0 ? SystemClock::from_time_t(theirs) : SystemClock::now();
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

// Of what is read from the beginning to the end; a broken connection may begin it anew.
class Md5 {
 public:
  void add(uint64_t offset, std::span<const std::byte> bytes) {
    if (offset == 0) EVP_DigestInit_ex(context_.get(), EVP_md5(), nullptr);
    EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
    is_begun_ = true;
  }
  std::string bytes() {
    if (!is_begun_) EVP_DigestInit_ex(context_.get(), EVP_md5(), nullptr);  // of nothing
    std::string sum(EVP_MAX_MD_SIZE, '\0');
    unsigned length = 0;
    EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(sum.data()), &length);
    sum.resize(length);
    return sum;
  }
  std::string hexadecimal() {
    std::string text;
    for (const char byte : bytes()) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Free> context_{EVP_MD_CTX_new()};
  bool is_begun_ = false;
};

// As Content-MD5 has it.
Result<std::string> md5_of(const ObjectContent& content) {
  constexpr size_t kAtOnce = size_t{1} << 20;
  Md5 md5;
  std::vector<std::byte> some(std::min<uint64_t>(kAtOnce, content.size));
  for (uint64_t at = 0; at < content.size; at += some.size()) {
    some.resize(std::min<uint64_t>(some.size(), content.size - at));
    TRY(content.read(at, some));
    md5.add(at, some);
  }
  const std::string sum = md5.bytes();
  std::string text(4 * ((sum.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(sum.data()), static_cast<int>(sum.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

// An ETag stands in quotes.
bool holds(std::string_view tag, const std::string& sum) { return tag == sum || tag == "\"" + sum + "\""; }

}  // namespace

S3Store::S3Store(const std::string& bucket, std::string prefix, Place place, const S3Settings& settings)
    : url_("s3://" + bucket + "/" + prefix),
      bucket_(bucket),
      prefix_(std::move(prefix) + "/"),
      place_(std::move(place)),
      most_at_once_(settings.most_at_once),
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
  if (is_one_of(kMissing, failure.code)) return Error(ENOENT, words);
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
  Texts headers{{"content-type", "application/octet-stream"}};
  if (mode == PutMode::make) headers["if-none-match"] = "*";
  TRY(send(key, {}, std::move(headers), content, limits));
  return success();
}

Result<std::string> S3Store::send(const std::string& key, const Texts& query, Texts headers,
                                  const ObjectContent& content, const RequestLimits& limits, std::string* sum) {
  TRY(check_key(key));
  TRY(check_fits(key));
  ++counts_.puts;
  // An object that is only made, never replaced, must not come to be damaged.
  const bool is_made = headers.contains("if-none-match");
  const bool beforehand = sum == nullptr && (is_made || check_ == Check::beforehand);
  if (beforehand) {
    TRY_ASSIGN(headers["content-md5"], md5_of(content));
  }
  Md5 md5;
  const ObjectContent counted{content.size, [&](uint64_t offset, std::span<std::byte> buffer) -> Result<> {
                                TRY(content.read(offset, buffer));
                                md5.add(offset, buffer);
                                counts_.bytes_sent += buffer.size();
                                return success();
                              }};
  HttpRequest request;
  request.content = &counted;
  const std::string name = url_ + "/" + key;
  TRY_ASSIGN(const HttpAnswer answer, ask("PUT", path_of(key), query, std::move(headers), request, name, limits));
  if (answer.status == 412 && answer.sent > 1) {  // the first one may have arrived
    return Error(ECONNRESET, name + ": the connection broke, and the reply is lost");
  }
  if (answer.status / 100 != 2) return error_of(answer, name);
  if (answer.status != 200 || header_of(answer, "etag").empty()) {
    return Error(EPROTO, name + ": " + place_.host + " answers " + std::to_string(answer.status) +
                             " without an ETag: it is no object store");
  }
  const std::string tag = header_of(answer, "etag");
  const std::string sent = md5.hexadecimal();
  if (sum != nullptr) {
    *sum = sent;
    return tag;
  }
  const bool is_same = holds(tag, sent);
  check_ = is_same ? Check::afterwards : Check::beforehand;  // its ETags may be no MD5, or no longer
  if (!is_same && !beforehand) {
    return Error(EAGAIN,
                 name + ": it was damaged on its way to " + place_.host + ": that has something else than was sent");
  }
  return tag;
}

Result<> S3Store::find_check(const std::string& key, const RequestLimits& limits) {
  const auto began = std::chrono::steady_clock::now();
  constexpr std::string_view kText = "what was sent", kOther = "what was not";
  std::string sum;
  TRY_ASSIGN(const std::string tag, send(key, {}, {}, content_of(kText), limits, &sum));
  auto checks = [&]() -> Result<> {
    TRY_ASSIGN(const std::string wrong, md5_of(content_of(kOther)));
    std::string ignored;
    const auto taken = send(key, {}, {{"content-md5", wrong}}, content_of(kText), limits.renewed(began), &ignored);
    const bool refused = !taken && taken.error().message().find("Digest") != std::string::npos;  // BadDigest
    if (!taken && !refused) return taken.error();
    if (refused) return success();
    return Error(EPROTO, url_ + ": " + place_.host +
                             " does not compare what arrives with what was sent: it takes a wrong Content-MD5. Use "
                             "another server");
  }();
  if (checks) check_ = holds(tag, sum) ? Check::afterwards : Check::beforehand;
  auto removed = remove(key, limits.renewed(began));
  return checks ? removed : checks;
}

Result<> S3Store::check_fits(const std::string& key) const {
  if (prefix_.size() + key.size() <= kLongestKey) return success();
  return Error(EINVAL, printable(key) + ": its name is too long for an object of S3; rename or remove it");
}

Result<HttpAnswer> S3Store::post(const std::string& method, const std::string& key, const Texts& query, Texts headers,
                                 const std::string& text, const RequestLimits& limits) {
  TRY(check_key(key));
  TRY(check_fits(key));
  ++counts_.puts;
  const ObjectContent content = content_of(text);
  HttpRequest request;
  request.content = &content;
  request.most_text = kLongestList;
  const std::string name = url_ + "/" + key;
  TRY_ASSIGN(HttpAnswer answer, ask(method, path_of(key), query, std::move(headers), request, name, limits));
  // What takes long is answered by 200 at its begin, and may fail all the same.
  const bool failed = answer.status / 100 != 2 || !read_s3_failure(answer.text).code.empty();
  if (failed) return error_of(answer, name);
  return answer;
}

Result<> S3Store::copy(const std::string& from, const std::string& to, uint64_t size, const RequestLimits& limits) {
  TRY(check_key(from));
  if (size > most_at_once_) return copy_in_pieces(from, to, size, limits);
  const Texts headers{{"x-amz-copy-source", path_in_bucket(from)}};
  TRY_ASSIGN(const HttpAnswer answer, post("PUT", to, {}, headers, "", limits));
  if (!read_s3_text(answer.text, "/CopyObjectResult/ETag").empty()) return success();
  return Error(ENOTSUP, url_ + "/" + to + ": " + place_.host + " does not copy objects");
}

Result<> S3Store::copy_in_pieces(const std::string& from, const std::string& to, uint64_t size,
                                 const RequestLimits& limits) {
  const auto began = std::chrono::steady_clock::now();
  const uint64_t piece = std::max(most_at_once_, (size + kMostPieces - 1) / kMostPieces);
  TRY_ASSIGN(const Upload upload, begin_upload(to, limits));
  auto copied = [&]() -> Result<> {
    std::vector<std::string> pieces;
    for (uint64_t at = 0; at < size; at += piece) {
      const uint64_t last = std::min(at + piece, size) - 1;
      const Texts headers{{"x-amz-copy-source", path_in_bucket(from)},
                          {"x-amz-copy-source-range", "bytes=" + std::to_string(at) + "-" + std::to_string(last)}};
      const Texts query{{"partNumber", std::to_string(pieces.size() + 1)}, {"uploadId", upload.id}};
      TRY_ASSIGN(const HttpAnswer answer, post("PUT", to, query, headers, "", limits.renewed(began)));
      pieces.push_back(read_s3_text(answer.text, "/CopyPartResult/ETag"));
      if (pieces.back().empty()) return Error(ENOTSUP, url_ + "/" + to + ": " + place_.host + " does not copy ranges");
    }
    return complete_upload(upload, size, pieces, limits.renewed(began));
  }();
  if (!copied) {
    ++counts_.removes;
    std::ignore = ask("DELETE", path_of(to), {{"uploadId", upload.id}}, {}, {}, url_, limits.renewed(began));
  }
  return copied;
}

Result<Upload> S3Store::begin_upload(const std::string& key, const RequestLimits& limits) {
  const Texts headers{{"content-type", "application/octet-stream"}};
  TRY_ASSIGN(const HttpAnswer answer, post("POST", key, {{"uploads", ""}}, headers, "", limits));
  Upload upload{key, read_s3_text(answer.text, "/InitiateMultipartUploadResult/UploadId")};
  if (!upload.id.empty()) return upload;
  return Error(EPROTO, url_ + "/" + key + ": " + place_.host + " begins no multipart upload");
}

Result<std::string> S3Store::put_piece(const Upload& upload, uint32_t number, uint64_t /*offset*/,
                                       const ObjectContent& content, const RequestLimits& limits) {
  const Texts query{{"partNumber", std::to_string(number)}, {"uploadId", upload.id}};
  return send(upload.key, query, {}, content, limits);
}

Result<> S3Store::complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                                  const RequestLimits& limits) {
  std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (size_t at = 0; at < pieces.size(); ++at) {
    text += "<Part><PartNumber>" + std::to_string(at + 1) + "</PartNumber><ETag>" + pieces[at] + "</ETag></Part>";
  }
  text += "</CompleteMultipartUpload>";
  const auto done =
      post("POST", upload.key, {{"uploadId", upload.id}}, {{"content-type", "application/xml"}}, text, limits);
  if (done && !read_s3_text(done.value().text, "/CompleteMultipartUploadResult/ETag").empty()) return success();
  if (!done && done.error().errno_value() != ENOENT) return done.error();
  TRY_ASSIGN(const bool there, has_size(*this, upload.key, size, limits));  // a reply was lost, or is not clear
  if (there) return success();
  if (!done) return done.error();
  return Error(EAGAIN, url_ + "/" + upload.key + ": " + place_.host + " does not say that it is complete");
}

Result<uint64_t> S3Store::end_uploads(std::chrono::seconds older_than, const RequestLimits& limits) {
  const auto began = std::chrono::steady_clock::now();
  uint64_t ended = 0;
  Texts query{{"uploads", ""}, {"prefix", prefix_}};
  for (bool more = true; more;) {
    ++counts_.lists;
    HttpRequest request;
    request.most_text = kLongestList;
    TRY_ASSIGN(const HttpAnswer answer, ask("GET", place_.path, query, {}, request, url_, limits.renewed(began)));
    if (answer.status / 100 != 2) return error_of(answer, url_);
    TRY_ASSIGN(const S3Uploads page, with_name(url_, read_s3_uploads(answer.text)));
    const SystemTime now = time_of_answer(answer);
    for (const S3Upload& upload : page.uploads) {
      if (!upload.key.starts_with(prefix_) || upload.begun > now - older_than) continue;
      TRY_ASSIGN(const bool idle, end_if_idle(upload, now - older_than, limits.renewed(began)));
      ended += idle ? 1 : 0;
    }
    const bool is_same = page.next_key == query["key-marker"] && page.next_id == query["upload-id-marker"];
    more = !page.next_key.empty() && !is_same;
    query["key-marker"] = page.next_key;
    query["upload-id-marker"] = page.next_id;
  }
  return ended;
}

// Whoever completes it meanwhile was idle for so long, and has lost a race.
Result<bool> S3Store::end_if_idle(const S3Upload& upload, SystemTime before, const RequestLimits& limits) {
  const std::string path = place_.path + percent_encoded(upload.key, true);
  const Texts query{{"uploadId", upload.id}};
  Texts page = query;
  for (std::string marker = "0"; !marker.empty();) {
    page["part-number-marker"] = marker;
    ++counts_.lists;
    HttpRequest request;
    request.most_text = kLongestList;
    TRY_ASSIGN(const HttpAnswer answer, ask("GET", path, page, {}, request, url_, limits));
    if (answer.status == 404) return false;
    if (answer.status / 100 != 2) return error_of(answer, url_);
    TRY_ASSIGN(const S3Pieces pieces, with_name(url_, read_s3_pieces(answer.text)));
    if (pieces.newest > before) return false;
    marker = pieces.next == marker ? "" : pieces.next;
  }
  ++counts_.removes;
  TRY_ASSIGN(const HttpAnswer answer, ask("DELETE", path, query, {}, {}, url_, limits));
  if (answer.status / 100 != 2 && answer.status != 404) return error_of(answer, url_);
  return true;
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
  TRY(check_beginning(prefix));
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

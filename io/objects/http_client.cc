#include "io/objects/http_client.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <mutex>

#include "io/printable.h"

namespace ckptfs::io {
namespace {

using Clock = std::chrono::steady_clock;

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Headers = std::unique_ptr<curl_slist, FreeList>;

// What the callbacks of one request work on.
struct Exchange {
  const HttpRequest& request;
  const RequestLimits& limits;
  CURL* curl;
  HttpAnswer answer{};
  uint64_t sent = 0;
  curl_off_t moved = 0;  // bytes, both ways
  Clock::time_point moved_at = Clock::now();
  Error ended{};            // why a callback ended it
  bool of_content = false;  // it was the content's read()
  bool has_head = false;    // the answer's headers have come to their end
};

size_t ends(Exchange& exchange, Error why, size_t code) {
  exchange.ended = std::move(why);
  return code;
}

size_t send_more(char* buffer, size_t size, size_t count, void* data) {
  Exchange& exchange = *static_cast<Exchange*>(data);
  const ObjectContent& content = *exchange.request.content;
  const size_t next = std::min<uint64_t>(size * count, content.size - exchange.sent);
  if (next == 0) return 0;
  if (auto read = content.read(exchange.sent, std::as_writable_bytes(std::span(buffer, next))); !read) {
    exchange.of_content = true;
    return ends(exchange, read.error(), CURL_READFUNC_ABORT);
  }
  exchange.sent += next;
  return next;
}

// libcurl begins the body again, on a new connection.
int send_from(void* data, curl_off_t offset, int origin) {
  if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<Exchange*>(data)->sent = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

size_t receive(const char* bytes, size_t size, size_t count, void* data) {
  Exchange& exchange = *static_cast<Exchange*>(data);
  HttpAnswer& answer = exchange.answer;
  const size_t length = size * count;
  long status = 0;
  curl_easy_getinfo(exchange.curl, CURLINFO_RESPONSE_CODE, &status);
  if (status / 100 == 2 && !exchange.request.into.empty()) {
    if (length > exchange.request.into.size() - answer.filled) {
      return ends(exchange, Error(EMSGSIZE, "the answer is longer than what was asked for"), 0);
    }
    std::memcpy(exchange.request.into.data() + answer.filled, bytes, length);
    answer.filled += length;
  } else {
    const size_t kept = std::min(length, exchange.request.most_text - answer.text.size());
    answer.text.append(bytes, kept);
    answer.cut = answer.cut || kept < length;
  }
  return length;
}

size_t receive_header(const char* bytes, size_t size, size_t count, void* data) {
  Exchange& exchange = *static_cast<Exchange*>(data);
  HttpAnswer& answer = exchange.answer;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) answer.headers.clear();  // those before were of "100 Continue"
  exchange.has_head = line == "\r\n" || line == "\n" || (exchange.has_head && !line.starts_with("HTTP/"));
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || answer.headers.size() >= 100) return line.size();
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  const size_t end = line.find_last_not_of(" \t\r\n");
  answer.headers[name] = begin == std::string_view::npos || begin > end ? "" : line.substr(begin, end + 1 - begin);
  return line.size();
}

// Called when a request is about to go out on a connection.
int count(void* data, char* /*their_address*/, char* /*our_address*/, int /*their_port*/, int /*our_port*/) {
  ++static_cast<Exchange*>(data)->answer.sent;
  return CURL_PREREQFUNC_OK;
}

int look(void* data, curl_off_t /*to_receive*/, curl_off_t received, curl_off_t /*to_send*/, curl_off_t sent) {
  Exchange& exchange = *static_cast<Exchange*>(data);
  const auto now = Clock::now();
  if (received + sent != exchange.moved) exchange.moved = received + sent, exchange.moved_at = now;
  if (exchange.limits.is_stopped()) {
    exchange.ended = Error(ECANCELED);
  } else if (now > exchange.limits.deadline) {
    exchange.ended = Error(ETIMEDOUT, "no answer by the deadline");
  } else if (now - exchange.moved_at > exchange.limits.stall) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(exchange.limits.stall).count();
    exchange.ended = Error(ETIMEDOUT, "not a byte has moved for " + std::to_string(seconds) + " s");
  } else {
    return 0;
  }
  return 1;
}

int errno_of(CURLcode code) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
      return EPROTO;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return EHOSTUNREACH;
    case CURLE_COULDNT_CONNECT:
      return ECONNREFUSED;
    case CURLE_OPERATION_TIMEDOUT:
      return ETIMEDOUT;
    case CURLE_OUT_OF_MEMORY:
      return ENOMEM;
    default:
      return ECONNRESET;
  }
}

std::string host_of(const std::string& url) {
  const size_t begin = url.find("://");
  const size_t host = begin == std::string::npos ? 0 : begin + 3;
  return url.substr(0, url.find_first_of("/?", host));
}

// The system's certificates: libcurl knows the place of one distribution at most, and a portable build none.
std::string system_authorities() {
  for (const char* const file : {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch
                                 "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, RHEL
                                 "/etc/ssl/ca-bundle.pem",              // SUSE
                                 "/etc/ssl/cert.pem"}) {                // Alpine
    if (::access(file, R_OK) == 0) return file;
  }
  return "";
}

constexpr const char* kNoAuthorities = "; this machine has no certificates of authorities: install ca-certificates";

}  // namespace

struct HttpClient::Handle {
  Handle() : curl(curl_easy_init()) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { curl_easy_cleanup(curl); }

  CURL* const curl;
};

HttpClient::HttpClient(std::string authorities)
    : own_authorities_(!authorities.empty()),
      authorities_(own_authorities_ ? std::move(authorities) : system_authorities()) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

HttpClient::~HttpClient() = default;

std::unique_ptr<HttpClient::Handle> HttpClient::take() {
  const MutexLock lock(mutex_);
  if (idle_.empty()) return std::make_unique<Handle>();
  std::unique_ptr<Handle> handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

// Its connections stay with it.
void HttpClient::give_back(std::unique_ptr<Handle> handle) {
  curl_easy_reset(handle->curl);
  const MutexLock lock(mutex_);
  if (idle_.size() < kIdle) idle_.push_back(std::move(handle));
}

Result<HttpAnswer> HttpClient::send(const HttpRequest& request, const RequestLimits& limits) {
  std::unique_ptr<Handle> handle = take();
  CURL* const curl = handle->curl;
  if (curl == nullptr) return Error(ENOMEM, "libcurl cannot be used");
  Exchange exchange{request, limits, curl};
  char why[CURL_ERROR_SIZE] = "";
  Headers headers;
  for (const std::string& line : request.headers) headers.reset(curl_slist_append(headers.release(), line.c_str()));
  // Without it libcurl waits a second for "100 Continue" before each body.
  headers.reset(curl_slist_append(headers.release(), "Expect:"));
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::min<int64_t>(limits.stall.count(), 10'000)));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, receive_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_PREREQFUNCTION, count);
  curl_easy_setopt(curl, CURLOPT_PREREQDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &exchange);
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // a name server that does not answer holds nobody past the limits
#endif
  if (!authorities_.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, authorities_.c_str());
  if (own_authorities_) curl_easy_setopt(curl, CURLOPT_CAPATH, nullptr);
  if (request.no_proxy) curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  if (request.content != nullptr) {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.content->size));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, send_more);
    curl_easy_setopt(curl, CURLOPT_READDATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, send_from);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, &exchange);
  }
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &exchange.answer.status);
  if (code == CURLE_OK && !exchange.has_head) {  // libcurl takes that for a whole answer
    return Error(ECONNRESET, host_of(request.url) + ": the connection broke in the middle of the answer's headers");
  }
  if (code == CURLE_OK) {
    give_back(std::move(handle));
    return std::move(exchange.answer);
  }
  // A handle whose request broke off is not used again.
  if (exchange.ended.errno_value() == ECANCELED || exchange.of_content) return exchange.ended;
  const std::string words = exchange.ended.errno_value() != 0 ? exchange.ended.message()
                            : why[0] != '\0'                  ? printable(why)
                                                              : curl_easy_strerror(code);
  const int number = exchange.ended.errno_value() != 0 ? exchange.ended.errno_value() : errno_of(code);
  const bool trusts_nobody = code == CURLE_PEER_FAILED_VERIFICATION && authorities_.empty();
  return Error(number, host_of(request.url) + ": " + words + (trusts_nobody ? kNoAuthorities : ""));
}

}  // namespace ckptfs::io

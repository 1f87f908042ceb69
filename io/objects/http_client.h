// HTTP requests by libcurl. Connections stay open between requests, up to kIdle of them, and are used again.
//
// HTTP/1.1, as the AWS tools speak it. What it never does: follow a redirect (a signed request is for one host), speak
// anything but HTTP and HTTPS, accept a certificate that it cannot check.
//
// Thread-safe. send() blocks, in the calling thread, until the answer is there or the limits end it.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/mutex.h"
#include "io/objects/object_store.h"
#include "io/result.h"

namespace ckptfs::io {

struct HttpRequest {
  std::string method;  // GET, PUT, DELETE
  std::string url;
  std::vector<std::string> headers;        // "Name: value"
  const ObjectContent* content = nullptr;  // of a PUT
  std::span<std::byte> into{};             // the body of a 2xx goes here; a longer one is EMSGSIZE
  bool no_proxy = false;                   // do not go through the proxy that the environment names
  size_t most_text = size_t{64} << 10;     // of a body that does not go into `into`: so many bytes are kept
};

struct HttpAnswer {
  long status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  size_t filled = 0;                           // of `into`
  std::string text;                            // the body, where it did not go into `into`
  bool cut = false;                            // the text was longer than that
  int sent = 0;                                // how often libcurl has sent the request: again, if a connection broke
};

class HttpClient {
 public:
  // `authorities`: a file of the certificates to trust, and of no others; empty: the system's, if it has some.
  explicit HttpClient(std::string authorities);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Whatever the status, an answer is a success. An error says that there is no whole answer, and names the host. It
  // can pass unless the certificate is refused, the address is none, or the body is too long. An error of content->read
  // is returned as it is.
  Result<HttpAnswer> send(const HttpRequest& request, const RequestLimits& limits);

 private:
  struct Handle;

  static constexpr size_t kIdle = 16;

  std::unique_ptr<Handle> take();
  void give_back(std::unique_ptr<Handle> handle);

  const bool own_authorities_;  // not the system's
  const std::string authorities_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::io

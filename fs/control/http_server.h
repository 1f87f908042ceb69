// A small HTTP server to watch a mount: metrics and the page. It understands GET and HEAD only, so nothing can be
// changed through it. It is off unless asked for (-o http=ADDRESS:PORT).
//
// With a token, clients that send it may ask (Authorization: Bearer TOKEN). Only on loopback it works without a token.
// Then every user of this machine may ask, but no other site's page in their browser: the request must name the host as
// localhost or by its address.
//
// One Boost.Asio context runs on a thread of its own. Slow work runs on another thread, so that metrics never wait.
//
// Thread safety: add() and every() before start(); start() and stop() from one thread. Handlers must not outlive what
// they capture: stop() returns when none runs any more.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "io/result.h"

namespace ckptfs::fs {

struct HttpOptions {
  std::string address;  // "127.0.0.1:9180", "[::1]:9180"; empty: no server
  std::string token;    // empty: no token is asked for
};

// EINVAL, in words: it is no IP address with a port.
Result<> check_http_address(const std::string& address);
// Can only this machine reach the address?
bool is_loopback(const std::string& address);

class HttpServer {
 public:
  struct Answer {
    unsigned status = 200;
    std::string type;  // "text/html; charset=utf-8"
    std::string body;
  };
  using Handler = std::function<Answer()>;
  enum class Pace { quick, slow };
  // `none` is for pages that tell nothing of the mount.
  enum class Guard { none, token };

  explicit HttpServer(HttpOptions options);
  ~HttpServer();  // stops

  void add(const std::string& path, Pace pace, Guard guard, Handler handler);
  // Calls `work`, which must be quick, once in each period.
  void every(std::chrono::seconds period, std::function<void()> work);

  // Afterwards address() is known, and clients can connect, but get no answer. EADDRINUSE, EACCES, EADDRNOTAVAIL: as
  // bind(2). The error names the address.
  Result<> listen();
  // Begins to answer. To be called after listen().
  Result<> start();
  // May be called twice, and without start().
  void stop();

  // Where it listens. If port 0 was asked for, this has the port that the kernel chose.
  const std::string& address() const;

 private:
  struct Internals;
  class Connection;
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::fs

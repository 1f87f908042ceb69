// A small HTTP server for what one watches a mount with: metrics and the page. GET and HEAD only; nothing can be
// changed through it. Off unless asked for (-o http=ADDRESS:PORT).
//
// Who may ask: with a token, whoever sends it (Authorization: Bearer TOKEN). Without one, which loopback alone allows,
// every user of this machine, and no other site's page in their browser: the request must name the host localhost, or
// by its address.
//
// One Boost.Asio context on a thread of its own; what takes long runs on another, so that metrics wait for nothing.
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
  std::string token;    // empty: none is asked for
};

// EINVAL, in words: no IP address with a port.
Result<> check_http_address(const std::string& address);
// Of this machine alone.
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
  // none: it tells nothing of the mount.
  enum class Guard { none, token };

  explicit HttpServer(HttpOptions options);
  ~HttpServer();  // stops

  void add(const std::string& path, Pace pace, Guard guard, Handler handler);
  // `work` is quick.
  void every(std::chrono::seconds period, std::function<void()> work);

  // From then on address() is known, and clients wait. EADDRINUSE, EACCES, EADDRNOTAVAIL: as bind(2); the error names
  // the address.
  Result<> listen();
  // Answers; after listen().
  Result<> start();
  // Harmless a second time, and without start().
  void stop();

  // Where it listens: the port, where 0 was asked for, is the one that was given.
  const std::string& address() const;

 private:
  struct Internals;
  class Connection;
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::fs

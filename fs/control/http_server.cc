#include "fs/control/http_server.h"

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "io/log.h"
#include "io/text.h"

namespace ckptfs::fs {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using boost::system::error_code;

constexpr size_t kMostConnections = 64;
constexpr uint32_t kMostHeader = 8192;
constexpr auto kPatience =
    std::chrono::seconds(30);  // with a client, for its next request and for it to take an answer
constexpr auto kPauseOfAccept = std::chrono::milliseconds(100);

Result<tcp::endpoint> endpoint_of(const std::string& address) {
  const Error bad(EINVAL, "http=" + address + ": it is no IP address with a port, as in 127.0.0.1:9180 or [::1]:9180");
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const auto port = io::parse_number<uint16_t>(address.substr(colon + 1));
  error_code error;
  const auto ip = asio::ip::make_address(host, error);
  if (error || !port) return bad;
  return tcp::endpoint(ip, *port);
}

std::string text_of(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

// Compares in a time that does not depend on where the two differ.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned differs = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    differs |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return differs == 0;
}

// Does the request name this machine? A page of another site whose name was made to lead here (DNS rebinding) names
// that site.
bool names_this_machine(std::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos) host = host.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "localhost") return true;
  error_code error;
  asio::ip::make_address(std::string(host), error);
  return !error;
}

struct Page {
  HttpServer::Pace pace = HttpServer::Pace::quick;
  HttpServer::Guard guard = HttpServer::Guard::token;
  HttpServer::Handler handler;
};

HttpServer::Answer plain(unsigned status, const std::string& words) {
  return {status, "text/plain; charset=utf-8", words + "\n"};
}

HttpServer::Answer answer_of(const HttpServer::Handler& handler) {
  try {
    return handler();
  } catch (const std::exception& e) {
    log::error("http: {}", e.what());
    return plain(500, e.what());
  }
}

}  // namespace

Result<> check_http_address(const std::string& address) {
  TRY(endpoint_of(address));
  return success();
}

bool is_loopback(const std::string& address) {
  const auto endpoint = endpoint_of(address);
  return endpoint && endpoint.value().address().is_loopback();
}

// All members but `options`, `pages` and `address` are touched by the context's thread only, once it runs.
struct HttpServer::Internals {
  explicit Internals(HttpOptions wanted) : options(std::move(wanted)) {}

  struct Periodic {
    std::chrono::seconds period;
    std::function<void()> work;
    std::unique_ptr<asio::steady_timer> timer;
  };

  Result<> listen();
  void accept_next();
  bool make_room();
  void repeat(Periodic& periodic);
  void begin_stop();

  const HttpOptions options;
  std::string address;
  std::map<std::string, Page, std::less<>> pages;  // fixed from start() on
  std::vector<Periodic> periodics;
  asio::io_context context{1};
  asio::io_context slow{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work, slow_work;
  tcp::acceptor acceptor{context};
  asio::steady_timer pause{context};
  std::set<std::shared_ptr<Connection>> connections;
  bool stopping = false;
  std::thread thread, slow_thread;
};

// One client. Alternates between reading a request and answering it. Context thread only.
class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Internals& server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {}

  void read() {
    waits_since_ = Clock::now();
    parser_.emplace();
    parser_->header_limit(kMostHeader);
    parser_->body_limit(0);
    stream_.expires_after(kPatience);
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](const error_code& error, size_t) {
      if (error) return self->close();
      self->waits_since_.reset();
      self->answer();
    });
  }
  // Since when the connection has waited for a request. None: a request is being answered.
  const std::optional<Clock::time_point>& waits_since() const { return waits_since_; }

  void close() {
    error_code ignored;  // the connection ends either way
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
    server_.connections.erase(shared_from_this());
  }

 private:
  void answer() {
    if (server_.stopping) return close();
    const auto& request = parser_->get();
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      return send(plain(405, "only GET and HEAD are understood here"));
    }
    const std::string_view target(request.target().data(), request.target().size());
    const auto page = server_.pages.find(target.substr(0, target.find('?')));
    if (page == server_.pages.end()) return send(plain(404, "there is no such page; / is the one to look at"));
    if (page->second.guard == Guard::token && !is_allowed()) return;
    if (page->second.pace == Pace::quick) return send(answer_of(page->second.handler));
    stream_.expires_never();
    asio::post(server_.slow, [self = shared_from_this(), &handler = page->second.handler,
                              busy = asio::make_work_guard(server_.context)] {
      asio::post(self->server_.context, [self, answer = answer_of(handler)] { self->send(answer); });
    });
  }

  // False: the client has got its answer already.
  bool is_allowed() {
    const auto& request = parser_->get();
    const auto header = [&request](http::field name) {
      const auto text = request[name];
      return std::string_view(text.data(), text.size());
    };
    const std::string& token = server_.options.token;
    if (!token.empty()) {
      constexpr std::string_view kScheme = "Bearer ";
      const std::string_view given = header(http::field::authorization);
      if (given.starts_with(kScheme) && same_secret(given.substr(kScheme.size()), token)) return true;
      send(plain(401, "the token is missing or wrong: Authorization: Bearer TOKEN (-o http_token=FILE has it)"));
      return false;
    }
    if (names_this_machine(header(http::field::host))) return true;
    send(plain(403, "this is served by address or as localhost only"));
    return false;
  }

  void send(const Answer& answer) {
    const auto& request = parser_->get();
    response_ = {};
    response_.version(request.version());
    response_.result(answer.status);
    response_.set(http::field::content_type, answer.type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("Referrer-Policy", "no-referrer");
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("Content-Security-Policy",
                  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
                  "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
    if (answer.status == 401) response_.set(http::field::www_authenticate, "Bearer");
    if (answer.status == 405) response_.set(http::field::allow, "GET, HEAD");
    response_.keep_alive(request.keep_alive() && !server_.stopping);
    response_.content_length(answer.body.size());
    if (request.method() != http::verb::head) response_.body() = answer.body;
    stream_.expires_after(kPatience);
    http::async_write(stream_, response_, [self = shared_from_this()](const error_code& error, size_t) {
      if (error || !self->response_.keep_alive()) return self->close();
      self->read();
    });
  }

  Internals& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMostHeader * 2};
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> response_;
  std::optional<Clock::time_point> waits_since_;
};

// Clients that only hold connections must not keep others out. So the connection that has waited longest for a request
// is closed.
bool HttpServer::Internals::make_room() {
  if (connections.size() < kMostConnections) return true;
  std::shared_ptr<Connection> longest;
  for (const auto& connection : connections) {
    const auto& since = connection->waits_since();
    if (since && (!longest || *since < *longest->waits_since())) longest = connection;
  }
  if (!longest) return false;
  longest->close();
  return true;
}

Result<> HttpServer::Internals::listen() {
  TRY_ASSIGN(const tcp::endpoint endpoint, endpoint_of(options.address));
  const auto failed = [&](const error_code& error) {
    return Error(error.value(),
                 "http=" + options.address + ": " + error.message() + "; choose another port or address");
  };
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (error) return failed(error);
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (error) return failed(error);
  address = text_of(acceptor.local_endpoint(error));
  return success();
}

void HttpServer::Internals::accept_next() {
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
    if (stopping || error == asio::error::operation_aborted) return;
    if (error) {
      log::warn("http: accept: {}", error.message());
      pause.expires_after(kPauseOfAccept);
      pause.async_wait([this](const error_code& cancelled) {
        if (!cancelled && !stopping) accept_next();
      });
      return;
    }
    if (make_room()) {  // if there is no room, the socket is closed at once
      auto connection = std::make_shared<Connection>(*this, std::move(socket));
      connections.insert(connection);
      connection->read();
    }
    accept_next();
  });
}

void HttpServer::Internals::repeat(Periodic& periodic) {
  periodic.work();
  periodic.timer->expires_after(periodic.period);
  periodic.timer->async_wait([this, &periodic](const error_code& cancelled) {
    if (!cancelled && !stopping) repeat(periodic);
  });
}

void HttpServer::Internals::begin_stop() {
  stopping = true;
  error_code ignored;  // closing is all that is left to do
  acceptor.close(ignored);
  pause.cancel();
  for (Periodic& periodic : periodics) periodic.timer->cancel();
  const auto now = connections;  // close() changes the set
  for (const auto& connection : now) connection->close();
  work.reset();
}

HttpServer::HttpServer(HttpOptions options) : internals_(std::make_unique<Internals>(std::move(options))) {}

HttpServer::~HttpServer() { stop(); }

void HttpServer::add(const std::string& path, Pace pace, Guard guard, Handler handler) {
  internals_->pages[path] = {pace, guard, std::move(handler)};
}

void HttpServer::every(std::chrono::seconds period, std::function<void()> work) {
  internals_->periodics.push_back({period, std::move(work), std::make_unique<asio::steady_timer>(internals_->context)});
}

Result<> HttpServer::listen() { return internals_->listen(); }

Result<> HttpServer::start() {
  internals_->work.emplace(asio::make_work_guard(internals_->context));
  internals_->accept_next();
  for (auto& periodic : internals_->periodics) internals_->repeat(periodic);
  try {
    internals_->slow_work.emplace(asio::make_work_guard(internals_->slow));
    internals_->thread = std::thread([server = internals_.get()] { server->context.run(); });
    internals_->slow_thread = std::thread([server = internals_.get()] { server->slow.run(); });
  } catch (const std::system_error& e) {
    return Error(e.code().value(), std::string("http: ") + e.what());
  }
  return success();
}

void HttpServer::stop() {
  if (!internals_->thread.joinable()) return;
  std::promise<void> begun;  // once it is set, no slow work begins
  asio::post(internals_->context, [server = internals_.get(), &begun] {
    server->begin_stop();
    begun.set_value();
  });
  begun.get_future().wait();
  internals_->slow_work.reset();
  if (internals_->slow_thread.joinable()) internals_->slow_thread.join();
  internals_->thread.join();
}

const std::string& HttpServer::address() const { return internals_->address; }

}  // namespace ckptfs::fs

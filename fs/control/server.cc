#include "fs/control/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "io/control_message.h"
#include "io/fd.h"
#include "io/json.h"
#include "io/log.h"

namespace ckptfs::fs {
namespace {

namespace asio = boost::asio;
using nlohmann::json;
using Stream = asio::local::stream_protocol;
using boost::system::error_code;

// Limits for one user, so that no user can keep the others out.
constexpr unsigned kConnectionsPerUser = 64;
constexpr size_t kUnreadPerUser = io::kMaximumMessage;  // bytes of answers
constexpr auto kFarewell = std::chrono::seconds(2);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// A request names some 128 files at most.
constexpr io::JsonBounds kRequestBounds{
    .bytes = io::kMaximumRequest, .values = 1024, .text = uint64_t{128} << 10, .depth = 16};

struct Command {
  ControlServer::Pace pace = ControlServer::Pace::quick;
  ControlServer::FileHandler handler;
};

// What is sent to the client.
struct Answer {
  std::string line;
  std::vector<io::Fd> descriptors;
};

std::string line_of(const json& reply) { return reply.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; }

Answer refusal(const Error& error) {
  return {line_of({{"ok", false}, {"errno", error.errno_value()}, {"error", error.message()}}), {}};
}

Answer answer_with(Result<io::ControlReply> result) {
  if (!result) return refusal(result.error());
  std::string line = line_of({{"ok", true}, {"result", std::move(result.value().result)}});
  if (line.size() <= io::kMaximumMessage) return {std::move(line), std::move(result.value().descriptors)};
  return refusal(Error(EMSGSIZE, "the reply would be longer than the control socket carries"));
}

Answer answer(const Command& command, const Peer& peer, const json& arguments) {
  try {
    return answer_with(command.handler(peer, arguments));
  } catch (const std::exception& e) {  // arguments of the wrong type
    return refusal(Error(EINVAL, std::string("the request's arguments: ") + e.what()));
  }
}

// Removes an old socket that nobody listens on.
Result<> remove_stale_socket(const std::string& path) {
  const auto listener = io::connect_to(path);
  if (listener) {
    return Error(EADDRINUSE, path + ": another daemon listens there; if its store was copied from (or to) this one, " +
                                 "change \"id\" in one of their config.json");
  }
  const int failed = listener.error().errno_value();
  if (failed == ENOENT) return success();
  if (failed != ECONNREFUSED) return listener.error();
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return last_error(path);
  log::info("control: {}: removed a socket that nobody listens on", path);
  return success();
}

Result<> make_folder(const std::string& socket_path, ControlServer::Audience audience) {
  const mode_t mode = audience == ControlServer::Audience::everybody ? 0755 : 0700;
  const mode_t wrong = audience == ControlServer::Audience::everybody ? 022 : 077;
  const std::string folder = std::filesystem::path(socket_path).parent_path();
  if (::mkdir(folder.c_str(), mode) == 0) {
    if (::chmod(folder.c_str(), mode) != 0) return last_error(folder);  // the umask may have taken bits away
    return success();
  }
  if (errno != EEXIST) return last_error(folder);
  struct stat st {};
  if (::lstat(folder.c_str(), &st) != 0) return last_error(folder);
  if (S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() && (st.st_mode & wrong) == 0) return success();
  return Error(EPERM, folder + ": it is no folder, or others may use it; remove it");
}

}  // namespace

// All members but `commands` and `path` are touched by the context's thread only, once it runs.
struct ControlServer::Internals {
  Internals(const std::string& socket_path, Audience wanted) : path(socket_path), audience(wanted) {}

  Result<> listen();
  void accept_next();
  void welcome(Stream::socket socket);
  void run_slow(const std::shared_ptr<Connection>& connection, const Command& command, json arguments);
  void forget(const std::shared_ptr<Connection>& connection);
  void begin_stop();
  void say_farewell();
  void remove_socket() const;

  const std::string path;
  const Audience audience;
  std::map<std::string, Command> commands;  // fixed from start() on
  asio::io_context context{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  Stream::acceptor acceptor{context};
  asio::steady_timer pause{context};
  asio::steady_timer farewell{context};
  std::set<std::shared_ptr<Connection>> connections;
  std::map<uint32_t, unsigned> connections_of_user;
  std::map<uint32_t, size_t> unread_of_user;  // bytes of answers that are being sent
  std::map<uint64_t, std::thread> slow;
  uint64_t next_slow = 0;
  bool stopping = false;
  std::pair<dev_t, ino_t> identity{};  // of the socket, so that no other daemon's socket is removed
  std::thread thread;
};

// One client. Alternates between reading a request and answering it. Context thread only.
class ControlServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Internals& server, Stream::socket socket, Peer peer)
      : server_(server), socket_(std::move(socket)), peer_(std::move(peer)) {}

  const Peer& peer() const { return peer_; }
  bool idle() const { return idle_; }

  void read() {
    idle_ = true;
    asio::async_read_until(socket_, asio::dynamic_buffer(input_, io::kMaximumRequest), '\n',
                           [self = shared_from_this()](const error_code& error, size_t length) {
                             self->idle_ = false;
                             if (!error) return self->take(length);
                             if (error != asio::error::not_found) return self->close();
                             self->last_ = true;
                             self->send(refusal(Error(EMSGSIZE, "a request may have 256 KiB")));
                           });
  }

  void send(Answer answer) {
    if (server_.unread_of_user[user()] + answer.line.size() > kUnreadPerUser) {
      log::warn("control: user {} does not read its answers: a connection is closed", user());
      return close();
    }
    output_ = std::move(answer.line);
    server_.unread_of_user[user()] += output_.size();
    if (answer.descriptors.empty()) return send_from(0);
    const auto sent = io::send_with_descriptors(socket_.native_handle(), output_, answer.descriptors);
    if (!sent) {
      log::warn("control: {}", sent.error().message());
      return close();
    }
    send_from(sent.value());
  }

  void refuse(const Error& error) {
    last_ = true;
    send(refusal(error));
  }

  void close() {
    error_code ignored;  // closing is all that is left to do
    socket_.close(ignored);
    was_sent();
    server_.forget(shared_from_this());
  }

 private:
  uint32_t user() const { return peer_.credentials.uid; }

  // The answer was sent, or never will be.
  void was_sent() {
    const auto unread = server_.unread_of_user.find(user());
    if (unread != server_.unread_of_user.end() && (unread->second -= output_.size()) == 0) {
      server_.unread_of_user.erase(unread);
    }
    output_ = {};
  }

  void send_from(size_t begin) {
    asio::async_write(socket_, asio::buffer(output_) + begin,
                      [self = shared_from_this()](const error_code& error, size_t) {
                        self->was_sent();
                        if (error || self->last_ || self->server_.stopping) return self->close();
                        self->read();
                      });
  }

  void take(size_t length) {
    auto parsed = io::parse_json(std::string_view(input_).substr(0, length), kRequestBounds);
    input_.erase(0, length);
    if (input_.empty()) input_.shrink_to_fit();
    if (!parsed && parsed.error().errno_value() == EFBIG)
      return send(refusal(Error(EMSGSIZE, parsed.error().message())));
    const json request = parsed ? std::move(parsed).value() : json();
    if (!request.is_object() || !request.contains("command") || !request["command"].is_string()) {
      return send(refusal(Error(EINVAL, "a request is {\"command\": NAME, \"arguments\": {...}}, on one line")));
    }
    json arguments = request.contains("arguments") ? request["arguments"] : json::object();
    if (!arguments.is_object()) return send(refusal(Error(EINVAL, "\"arguments\" must be an object")));
    const auto found = server_.commands.find(request["command"].get<std::string>());
    if (found == server_.commands.end()) {
      return send(refusal(Error(
          EOPNOTSUPP, "this daemon knows no command " + request["command"].dump() + "; is it of an older version?")));
    }
    if (found->second.pace == Pace::quick) return send(answer(found->second, peer_, arguments));
    server_.run_slow(shared_from_this(), found->second, std::move(arguments));
  }

  Internals& server_;
  Stream::socket socket_;
  Peer peer_;
  std::string input_;
  std::string output_;
  bool idle_ = false;  // waiting for a request
  bool last_ = false;  // closes after the reply
};

Result<> ControlServer::Internals::listen() {
  TRY(make_folder(path, audience));
  TRY(remove_stale_socket(path));
  error_code error;
  acceptor.open(Stream(), error);
  if (!error) acceptor.bind(Stream::endpoint(path), error);
  if (error) return Error(error.value(), path + ": " + error.message());
  struct stat st {};
  if (::chmod(path.c_str(), audience == Audience::everybody ? 0666 : 0600) != 0 || ::stat(path.c_str(), &st) != 0)
    return last_error(path);
  identity = {st.st_dev, st.st_ino};
  acceptor.listen(Stream::acceptor::max_listen_connections, error);
  if (error) return Error(error.value(), path + ": " + error.message());
  return success();
}

void ControlServer::Internals::accept_next() {
  acceptor.async_accept([this](const error_code& error, Stream::socket socket) {
    if (stopping || error == asio::error::operation_aborted) return;
    if (!error) {
      welcome(std::move(socket));
      return accept_next();
    }
    log::warn("control: {}: accept: {}", path, error.message());
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](const error_code& cancelled) {
      if (!cancelled && !stopping) accept_next();
    });
  });
}

void ControlServer::Internals::welcome(Stream::socket socket) {
  auto peer = peer_of(socket.native_handle());
  if (!peer) return log::warn("control: {}: {}", path, peer.error().message());
  auto connection = std::make_shared<Connection>(*this, std::move(socket), std::move(peer).value());
  connections.insert(connection);
  if (++connections_of_user[connection->peer().credentials.uid] > kConnectionsPerUser) {
    return connection->refuse(Error(EUSERS, "too many connections of this user to the control socket"));
  }
  connection->read();
}

void ControlServer::Internals::run_slow(const std::shared_ptr<Connection>& connection, const Command& command,
                                        json arguments) {
  const uint64_t id = next_slow++;
  auto body = [this, id, connection, &command, arguments = std::move(arguments),
               busy = asio::make_work_guard(context)] {
    auto finish = [this, id, connection,
                   reply = std::make_shared<Answer>(answer(command, connection->peer(), arguments))] {
      slow.at(id).join();
      slow.erase(id);
      connection->send(std::move(*reply));
      if (stopping && slow.empty()) say_farewell();
    };
    asio::post(context, std::move(finish));
  };
  try {
    slow.emplace(id, std::thread(std::move(body)));
  } catch (const std::system_error& e) {
    connection->send(refusal(Error(EAGAIN, std::string("no thread for the request: ") + e.what())));
  }
}

void ControlServer::Internals::forget(const std::shared_ptr<Connection>& connection) {
  if (connections.erase(connection) == 0) return;
  const auto user = connections_of_user.find(connection->peer().credentials.uid);
  if (--user->second == 0) connections_of_user.erase(user);
  if (stopping && connections.empty()) farewell.cancel();
}

void ControlServer::Internals::begin_stop() {
  stopping = true;
  error_code ignored;  // closing is all that is left to do
  acceptor.close(ignored);
  pause.cancel();
  const auto now = connections;  // close() changes the set
  for (const auto& connection : now) {
    if (connection->idle()) connection->close();
  }
  if (slow.empty()) say_farewell();
  work.reset();
}

// Gives clients a moment to take their last reply.
void ControlServer::Internals::say_farewell() {
  if (connections.empty()) return;
  farewell.expires_after(kFarewell);
  farewell.async_wait([this](const error_code&) {
    const auto now = connections;
    for (const auto& connection : now) connection->close();
  });
}

void ControlServer::Internals::remove_socket() const {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0 || identity != std::pair(st.st_dev, st.st_ino)) return;
  if (::unlink(path.c_str()) != 0) log::warn("control: {}: {}", path, last_error().message());
}

ControlServer::ControlServer(const std::string& socket_path, Audience audience)
    : internals_(std::make_unique<Internals>(socket_path, audience)) {}

ControlServer::~ControlServer() { stop(); }

void ControlServer::add(const std::string& command, Pace pace, Handler handler) {
  internals_->commands[command] = {
      pace, [handler = std::move(handler)](const Peer& peer, const json& arguments) -> Result<io::ControlReply> {
        TRY_ASSIGN(json result, handler(peer, arguments));
        return io::ControlReply{std::move(result), {}};
      }};
}

void ControlServer::add_for_files(const std::string& command, FileHandler handler) {
  internals_->commands[command] = {Pace::slow, std::move(handler)};
}

void ControlServer::guard(const std::string& command, std::function<Result<>()> check) {
  FileHandler& handler = internals_->commands.at(command).handler;
  handler = [check = std::move(check), guarded = std::move(handler)](const Peer& peer, const json& arguments) {
    const auto checked = check();
    return checked ? guarded(peer, arguments) : Result<io::ControlReply>(checked.error());
  };
}

Result<> ControlServer::start() {
  if (auto listening = internals_->listen(); !listening) {
    internals_->remove_socket();
    return listening;
  }
  internals_->work.emplace(asio::make_work_guard(internals_->context));
  internals_->accept_next();
  try {
    internals_->thread = std::thread([server = internals_.get()] { server->context.run(); });
  } catch (const std::system_error& e) {
    internals_->remove_socket();
    return Error(e.code().value(), std::string("control: ") + e.what());
  }
  return success();
}

void ControlServer::stop() {
  if (!internals_->thread.joinable()) return;
  internals_->remove_socket();
  asio::post(internals_->context, [server = internals_.get()] { server->begin_stop(); });
  internals_->thread.join();
}

const std::string& ControlServer::socket_path() const { return internals_->path; }

}  // namespace ckptfs::fs

// The control socket's server: answers commands, each a function, over a Unix stream socket (messages:
// io/control_message.h). Every user may connect. The handler gets the caller's credentials and decides
// (fs/open/permission.h).
//
// One Boost.Asio context runs on a thread of its own. Quick commands run on that thread. Each slow command runs on a
// thread of its own, so that it holds nobody up. The requests of one connection are answered in order, those of
// different connections independently.
//
// Thread safety: add() and guard() before start(); start() and stop() from one thread. Handlers must not outlive what
// they capture: stop() returns when none runs any more.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fs/open/peer.h"
#include "io/control_message.h"
#include "io/result.h"

namespace ckptfs::fs {

class ControlServer {
 public:
  // A request's arguments are always an object. The error's errno and words go to the client.
  using Handler = std::function<Result<nlohmann::json>(const Peer&, const nlohmann::json& arguments)>;
  enum class Pace { quick, slow };
  // The handler of a slow command that hands over open descriptors.
  using FileHandler = std::function<Result<io::ControlReply>(const Peer&, const nlohmann::json& arguments)>;

  // Who may connect. owner: nobody but this user and root.
  enum class Audience { everybody, owner };

  explicit ControlServer(const std::string& socket_path, Audience audience = Audience::everybody);
  ~ControlServer();  // stops

  void add(const std::string& command, Pace pace, Handler handler);
  // `run` is called with `on`, which must outlive stop().
  template <class On>
  void add(const std::string& command, Pace pace, On& on,
           Result<nlohmann::json> (*run)(On& on, const Peer& peer, const nlohmann::json& arguments)) {
    add(command, pace, [&on, run](const Peer& peer, const auto& arguments) { return run(on, peer, arguments); });
  }
  void add_for_files(const std::string& command, FileHandler handler);
  // `check` is asked before the command, which has been added; its error is the answer.
  void guard(const std::string& command, std::function<Result<>()> check);

  // Makes the socket, and its folder if that is missing, and serves it. EPERM: others may write to the folder or, with
  // Audience::owner, enter it. An old socket that nobody listens on is replaced. EADDRINUSE: somebody listens on it.
  Result<> start();
  // Removes the socket, waits for the slow commands that run and sends their replies, closes all connections.
  // May be called twice.
  void stop();

  const std::string& socket_path() const;

 private:
  struct Internals;
  class Connection;
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::fs

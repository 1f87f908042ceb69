// The control socket's server: commands, each a function, answered over a Unix stream socket; io/control_message.h has
// the messages. Every user may connect; who asks is told to the handler, which decides (fs/open/permission.h).
//
// One Boost.Asio context on one thread of its own. Quick commands run on that thread; slow ones each on a thread of
// their own, so that they hold nobody up. Requests of one connection are answered in order, connections independently.
//
// Thread safety: add() before start(); start() and stop() from one thread. Handlers must not outlive what they capture:
// stop() returns when none runs any more.
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
  // Of a slow command that hands open descriptors over.
  using FileHandler = std::function<Result<io::ControlReply>(const Peer&, const nlohmann::json& arguments)>;

  // Who may connect. owner: nobody but this user and root.
  enum class Audience { everybody, owner };

  explicit ControlServer(const std::string& socket_path, Audience audience = Audience::everybody);
  ~ControlServer();  // stops

  void add(const std::string& command, Pace pace, Handler handler);
  void add_for_files(const std::string& command, FileHandler handler);

  // Makes the socket and its folder, where that is missing, and serves it. EPERM where others may write to the folder
  // or, for the owner alone, enter it.
  // A socket that nobody listens on is replaced; EADDRINUSE where somebody does.
  Result<> start();
  // Removes the socket, waits for the slow commands that run and sends their replies, closes all connections.
  // Harmless a second time.
  void stop();

  const std::string& socket_path() const;

 private:
  struct Internals;
  class Connection;
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::fs

// The control socket's protocol: JSON over a Unix stream socket, one line for a request and one line for its reply.
//   request {"command": "save", "arguments": {...}}
//   reply   {"ok": true, "result": {...}}  or  {"ok": false, "errno": 17, "error": "words"}
// A reply may carry open descriptors (SCM_RIGHTS, sent with its first byte). This file has the client; the server is in
// fs/control/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::io {

inline constexpr size_t kMaximumMessage = 64 << 20;   // a reply
inline constexpr size_t kMaximumRequest = 256 << 10;  // includes the newline
inline constexpr size_t kMaximumDescriptors = 128;    // in one reply

struct ControlReply {
  nlohmann::json result;
  std::vector<Fd> descriptors;
};

// ECONNREFUSED or ENOENT: nobody listens on it.
Result<Fd> connect_to(const std::string& socket_path);

// Sends one request over a new connection and waits for the reply. A save can take long. A reply with ok=false becomes
// an Error with its errno and its words. The Error is ECONNREFUSED or ENOENT when nobody listens on the socket.
Result<ControlReply> control_request(const std::string& socket_path, const std::string& command,
                                     const nlohmann::json& arguments);

// The path of the socket of the ckptfs mount at `mountpoint`, which the root of the mount names in its xattr
// user.ckptfs.socket. ENOTCONN means that the daemon is dead. Waits for a daemon that hangs.
Result<std::string> control_socket_of(const std::string& mountpoint);

// The same as above, sent to that socket. ECONNREFUSED and ENOENT, explained in words, mean that nothing answers on it.
Result<nlohmann::json> ask_mount(const std::string& mountpoint, const std::string& command,
                                 const nlohmann::json& arguments);
Result<ControlReply> ask_mount_for_files(const std::string& mountpoint, const std::string& command,
                                         const nlohmann::json& arguments);

// Sends as much of `line` as the socket takes, and the descriptors. Returns the number of bytes sent. Fails with EAGAIN
// if the socket does not block and takes none.
Result<size_t> send_with_descriptors(int socket, const std::string& line, const std::vector<Fd>& descriptors);

}  // namespace ckptfs::io

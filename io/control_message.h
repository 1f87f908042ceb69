// The control socket's messages: JSON, one line a request, one line a reply, over a Unix stream socket.
//   request {"command": "save", "arguments": {...}}
//   reply   {"ok": true, "result": {...}}  or  {"ok": false, "errno": 17, "error": "words"}
// A reply may bring open descriptors with it (SCM_RIGHTS, with its first byte).
// The client side is here; the server is fs/control/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::io {

inline constexpr size_t kMaximumMessage = 64 << 20;   // a reply
inline constexpr size_t kMaximumRequest = 256 << 10;  // its newline included
inline constexpr size_t kMaximumDescriptors = 128;    // of a reply

// One request over a connection of its own; waits for the reply (a save can take long). A reply with ok=false becomes
// an Error with its errno and words; ECONNREFUSED/ENOENT when nobody listens.
Result<nlohmann::json> control_request(const std::string& socket_path, const std::string& command,
                                       const nlohmann::json& arguments);

// As above, of a reply that brings descriptors.
struct ControlReply {
  nlohmann::json result;
  std::vector<Fd> descriptors;
};
Result<ControlReply> control_request_for_files(const std::string& socket_path, const std::string& command,
                                               const nlohmann::json& arguments);

// Likewise, to the daemon of the ckptfs mount there, whose socket its root's user.ckptfs.socket names. ENOTCONN: its
// daemon is dead. ECONNREFUSED, ENOENT, in words: its socket is out of reach.
Result<nlohmann::json> ask_mount(const std::string& mountpoint, const std::string& command,
                                 const nlohmann::json& arguments);
Result<ControlReply> ask_mount_for_files(const std::string& mountpoint, const std::string& command,
                                         const nlohmann::json& arguments);

// Sends what the socket takes of `line`, with the descriptors. The bytes that were sent; EAGAIN: none, and it does not
// wait.
Result<size_t> send_with_descriptors(int socket, const std::string& line, const std::vector<Fd>& descriptors);

}  // namespace ckptfs::io

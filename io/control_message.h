// The control socket's messages: JSON, one line a request, one line a reply, over a Unix stream socket.
//   request {"command": "save", "arguments": {...}}
//   reply   {"ok": true, "result": {...}}  or  {"ok": false, "errno": 17, "error": "words"}
// The client side is here; the server is fs/control/.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

inline constexpr size_t kMaximumMessage = 64 << 20;  // a reply
inline constexpr size_t kMaximumRequest = 1 << 20;   // its newline included

// One request over a connection of its own; waits for the reply (a save can take long). A reply with ok=false becomes
// an Error with its errno and words; ECONNREFUSED/ENOENT when nobody listens.
Result<nlohmann::json> control_request(const std::string& socket_path, const std::string& command,
                                       const nlohmann::json& arguments);

}  // namespace ckptfs::io

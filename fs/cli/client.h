// Finds the mount that a command is about, and asks its daemon. Stateless.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

// A path: the mount that it lies in, and its path there.
struct Target {
  MountEntry mount;
  std::string path;  // from the mount's root: "/", "/steps/global_step100"
};

// Without a path: the only ckptfs mount that this user may enter. ENOENT: there is none. EINVAL, naming them: there are
// several. With a path: the ckptfs mount that it lies in. ENOENT: it lies in none.
Result<Target> find_target(const std::optional<std::string>& path);
// As above, of the given mounts. The path must be absolute. Pure.
Result<Target> find_target(const std::vector<MountEntry>& mounts, const std::optional<std::string>& path);

// Sends one request to the daemon of that mount. The xattr user.ckptfs.socket of the mount's root names its socket.
Result<nlohmann::json> ask_daemon(const MountEntry& mount, const std::string& command, const nlohmann::json& arguments);

// As ask_daemon(), for a request that may take long. After a second a line on the terminal says `what` is being done.
Result<nlohmann::json> ask_and_wait(const MountEntry& mount, const std::string& what, const std::string& command,
                                    const nlohmann::json& arguments);

}  // namespace ckptfs::fs::cli

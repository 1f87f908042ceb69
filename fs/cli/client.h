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

// Without a path: the only ckptfs mount that this user may enter; a mounted remote only if no store is mounted. ENOENT:
// there is none. EINVAL, naming them: there are several. With a path: the ckptfs mount that it lies in. ENOENT: it lies
// in none.
Result<Target> find_target(const std::optional<std::string>& path);
// As above, of the given mounts. The path must be absolute. Pure.
Result<Target> find_target(const std::vector<MountEntry>& mounts, const std::optional<std::string>& path);

// ETIMEDOUT, naming the mount, if its daemon does not answer within some seconds: it is stopped, or it hangs.
Result<> check_answers(const MountEntry& mount);

// Sends one request to the daemon of that mount, if it answers. The xattr user.ckptfs.socket of the mount's root names
// its socket.
Result<nlohmann::json> ask_daemon(const MountEntry& mount, const std::string& command, const nlohmann::json& arguments);

// Asks for the status of the daemon. ETIMEDOUT as above, also if the daemon hangs only once it has the request.
Result<nlohmann::json> ask_status(const MountEntry& mount);

// What `mount --json` prints: what `status --json` does. Returns the exit code (system.h).
int print_mounted(const std::string& mountpoint);

// As ask_daemon(), for a request that may take long. After a second a line on the terminal says `what` is being done.
Result<nlohmann::json> ask_and_wait(const MountEntry& mount, const std::string& what, const std::string& command,
                                    const nlohmann::json& arguments);

}  // namespace ckptfs::fs::cli

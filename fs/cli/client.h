// How the commands find the mount they mean and ask its daemon. Stateless.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

// A path, as the mount it lies in and what it is called there.
struct Target {
  MountEntry mount;
  std::string path;  // from the mount's root: "/", "/steps/global_step100"
};

// Without a path: the only ckptfs mount that this user may enter (ENOENT where there is none, EINVAL naming them where
// there are several). With one: the ckptfs mount it lies in (ENOENT).
Result<Target> find_target(const std::optional<std::string>& path);
// As above, on mounts and a path (absolute) already known. Pure.
Result<Target> find_target(const std::vector<MountEntry>& mounts, const std::optional<std::string>& path);

// One request to the daemon of that mount, whose socket its root's user.ckptfs.socket names.
Result<nlohmann::json> ask_daemon(const MountEntry& mount, const std::string& command, const nlohmann::json& arguments);

// As ask_daemon, for what may take long: `what` is being done, says a line on a terminal after a second.
Result<nlohmann::json> ask_and_wait(const MountEntry& mount, const std::string& what, const std::string& command,
                                    const nlohmann::json& arguments);

}  // namespace ckptfs::fs::cli

#include "fs/cli/client.h"

#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "fs/cli/progress.h"
#include "fs/cli/system.h"
#include "io/control_message.h"

namespace ckptfs::fs::cli {
namespace {

// One entry a file system: bind mounts of the same are left out, whole ones preferred.
std::vector<MountEntry> distinct_ckptfs(const std::vector<MountEntry>& mounts) {
  std::vector<MountEntry> found;
  std::set<std::string> seen;
  for (const bool whole : {true, false}) {
    for (const MountEntry& entry : mounts) {
      if (!is_ckptfs(entry) || (entry.root == "/") != whole) continue;
      if (seen.insert(entry.device).second) found.push_back(entry);
    }
  }
  return found;
}

Result<Target> only_mount(const std::vector<MountEntry>& mounts) {
  const auto found = distinct_ckptfs(mounts);
  if (found.empty()) {
    return Error(ENOENT, "no ckptfs is mounted on this machine; mount one: ckptfs mount STORE MOUNTPOINT");
  }
  if (found.size() == 1) return Target{found[0], found[0].root};
  std::string names;
  for (const MountEntry& entry : found) names += (names.empty() ? "" : ", ") + entry.mountpoint;
  return Error(EINVAL, "several ckptfs are mounted (" + names + "); say which one");
}

Result<std::string> socket_of(const std::string& mountpoint) {
  std::array<char, 4096> path{};
  const ssize_t length = getxattr(mountpoint.c_str(), "user.ckptfs.socket", path.data(), path.size());
  if (length >= 0) return std::string(path.data(), static_cast<size_t>(length));
  if (errno == ENOTCONN || errno == ECONNABORTED) {
    return Error(ENOTCONN, mountpoint +
                               ": its daemon is dead; mount it again (ckptfs mount replaces a dead mount), or " +
                               "take it away: ckptfs umount " + mountpoint);
  }
  return last_error(mountpoint + ": user.ckptfs.socket");
}

}  // namespace

Result<Target> find_target(const std::vector<MountEntry>& mounts, const std::optional<std::string>& path) {
  if (!path) return only_mount(mounts);
  // The longest mountpoint wins; of several at one path the topmost, which stands last.
  std::optional<MountEntry> best;
  for (const MountEntry& entry : mounts) {
    if (lies_within(*path, entry.mountpoint) && (!best || entry.mountpoint.size() >= best->mountpoint.size())) {
      best = entry;
    }
  }
  if (!best || !is_ckptfs(*best)) {
    std::string known;
    for (const MountEntry& entry : distinct_ckptfs(mounts)) known += (known.empty() ? "" : ", ") + entry.mountpoint;
    return Error(ENOENT, *path + ": is not on a ckptfs mount; " +
                             (known.empty() ? "none is mounted: ckptfs mount STORE MOUNTPOINT" : "mounted: " + known));
  }
  const std::string below = best->mountpoint == "/" ? *path : path->substr(best->mountpoint.size());
  std::string inside = (best->root == "/" ? "" : best->root) + below;
  return Target{*best, inside.empty() ? "/" : inside};
}

Result<Target> find_target(const std::optional<std::string>& path) {
  TRY_ASSIGN(auto mounts, io::mount_table());
  if (!path) {  // what some user mounted for themselves is not meant
    std::erase_if(mounts, [](const MountEntry& mount) { return !may_enter(mount, geteuid()); });
    return find_target(mounts, path);
  }
  TRY_ASSIGN(const std::string absolute, absolute_path(*path));
  return find_target(mounts, absolute);
}

Result<nlohmann::json> ask_daemon(const MountEntry& mount, const std::string& command,
                                  const nlohmann::json& arguments) {
  TRY_ASSIGN(const std::string socket, socket_of(mount.mountpoint));
  auto reply = io::control_request(socket, command, arguments);
  if (reply || (reply.error().errno_value() != ECONNREFUSED && reply.error().errno_value() != ENOENT)) return reply;
  if (access(socket.c_str(), F_OK) == 0 && reply.error().errno_value() == ENOENT) return reply;  // the command's own
  return Error(reply.error().errno_value(), socket + ": nobody listens on the control socket of " + mount.mountpoint +
                                                "; its log says why (another mount namespace has its own /run)");
}

Result<nlohmann::json> ask_and_wait(const MountEntry& mount, const std::string& what, const std::string& command,
                                    const nlohmann::json& arguments) {
  const Waiting waiting(what);
  return ask_daemon(mount, command, arguments);
}

}  // namespace ckptfs::fs::cli

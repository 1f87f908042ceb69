#include "fs/cli/client.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "fs/cli/limited_call.h"
#include "fs/cli/progress.h"
#include "fs/cli/system.h"
#include "io/control_message.h"
#include "meta/remote/address.h"

namespace ckptfs::fs::cli {
namespace {

// One mount for each ckptfs file system. If it is mounted several times, a mount of its root is taken before a bind
// mount of a folder.
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

// A mounted remote counts only if there is no mount of a store.
Result<Target> only_mount(const std::vector<MountEntry>& mounts) {
  auto found = distinct_ckptfs(mounts);
  const auto is_remote = [](const MountEntry& mount) { return meta::remote::is_remote_address(mount.source); };
  if (!std::ranges::all_of(found, is_remote)) std::erase_if(found, is_remote);
  if (found.empty()) {
    return Error(ENOENT, "no ckptfs is mounted on this machine; mount one: ckptfs mount STORE MOUNTPOINT");
  }
  if (found.size() == 1) return Target{found[0], found[0].root};
  std::string names;
  for (const MountEntry& entry : found) names += (names.empty() ? "" : ", ") + entry.mountpoint;
  return Error(EINVAL, "several ckptfs are mounted (" + names + "); say which one");
}

// Words for a daemon that did not answer.
Result<std::string> asked_of(const MountEntry& mount, Result<std::string> answer) {
  if (answer || answer.error().errno_value() != ETIMEDOUT) return answer;
  return Error(ETIMEDOUT, mount.mountpoint +
                              ": its daemon does not answer: it is stopped, or it hangs; pgrep -a ckptfs finds it, its "
                              "log says more");
}

}  // namespace

Result<Target> find_target(const std::vector<MountEntry>& mounts, const std::optional<std::string>& path) {
  if (!path) return only_mount(mounts);
  const auto best = io::mount_of(mounts, *path);
  if (!best || !is_ckptfs(*best)) {
    std::string known;
    for (const MountEntry& entry : distinct_ckptfs(mounts)) known += (known.empty() ? "" : ", ") + entry.mountpoint;
    return Error(ENOENT, *path + ": is not on a ckptfs mount; " +
                             (known.empty() ? "none is mounted: ckptfs mount STORE MOUNTPOINT" : "mounted: " + known));
  }
  return Target{*best, io::path_inside(*best, *path)};
}

Result<Target> find_target(const std::optional<std::string>& path) {
  TRY_ASSIGN(auto mounts, io::mount_table());
  if (!path) {  // not a mount that another user made for themselves
    std::erase_if(mounts, [](const MountEntry& mount) { return !may_enter(mount, geteuid()); });
    return find_target(mounts, path);
  }
  TRY_ASSIGN(const std::string absolute, absolute_path(*path));
  return find_target(mounts, absolute);
}

Result<> check_answers(const MountEntry& mount) {
  TRY(asked_of(mount, call_with_limit([&] { return io::control_socket_of(mount.mountpoint); })));
  return success();
}

Result<nlohmann::json> ask_daemon(const MountEntry& mount, const std::string& command,
                                  const nlohmann::json& arguments) {
  TRY(check_answers(mount));
  return io::ask_mount(mount.mountpoint, command, arguments);
}

Result<nlohmann::json> ask_status(const MountEntry& mount) {
  const auto ask = [&]() -> Result<std::string> {
    TRY_ASSIGN(const auto status, io::ask_mount(mount.mountpoint, "status", nlohmann::json::object()));
    return status.dump();
  };
  TRY_ASSIGN(const std::string status, asked_of(mount, call_with_limit(ask)));
  return nlohmann::json::parse(status);
}

int print_mounted(const std::string& mountpoint) {
  const auto target = find_target(mountpoint);
  const auto status = target ? ask_status(target.value().mount) : target.error();
  if (!status) return fail(mountpoint, status.error());
  print_json(status.value());
  return kSuccess;
}

Result<nlohmann::json> ask_and_wait(const MountEntry& mount, const std::string& what, const std::string& command,
                                    const nlohmann::json& arguments) {
  TRY(check_answers(mount));
  const Waiting waiting(what);
  return io::ask_mount(mount.mountpoint, command, arguments);
}

}  // namespace ckptfs::fs::cli

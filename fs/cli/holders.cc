#include "fs/cli/holders.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <sstream>

#include "io/fd.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

namespace files = std::filesystem;

// Does a link in /proc/PID lead to this mount? Tells by the device, which the kernel takes from its own cache.
bool is_on(const files::path& link, const MountEntry& mount) {
  struct statx stx {};
  if (statx(AT_FDCWD, link.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE, &stx) != 0) return false;
  return std::to_string(stx.stx_dev_major) + ":" + std::to_string(stx.stx_dev_minor) == mount.device;
}

std::string target_of(const files::path& link) {
  std::error_code error;
  const files::path target = files::read_symlink(link, error);
  return error ? link.string() : target.string();
}

std::string command_of(const files::path& process) {
  const auto command = io::read_file((process / "comm").string());
  return command ? command.value().substr(0, command.value().find('\n')) : "?";
}

// 7f12-7f13 rw-s 00000000 00:2c 42 /ckpt/a b
std::set<std::string> mapped_files(const files::path& process, const MountEntry& mount) {
  std::set<std::string> found;
  const auto maps = io::read_file((process / "maps").string());
  if (!maps) return found;
  std::istringstream stream(maps.value());
  for (std::string line; std::getline(stream, line);) {
    unsigned major = 0, minor = 0;
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%*s %*s %*s %x:%x %*s %n", &major, &minor, &path_at) < 2 || path_at == 0) continue;
    if (std::to_string(major) + ":" + std::to_string(minor) == mount.device)
      found.insert(line.substr(static_cast<size_t>(path_at)));
  }
  return found;
}

// The paths that one process holds, and how it holds them.
std::vector<std::pair<std::string, std::string>> held_by(const files::path& process, const MountEntry& mount) {
  std::vector<std::pair<std::string, std::string>> held;
  if (is_on(process / "cwd", mount)) held.emplace_back(target_of(process / "cwd"), "working directory");
  if (is_on(process / "root", mount)) held.emplace_back(target_of(process / "root"), "root");
  std::set<std::string> seen;
  std::error_code error;
  for (files::directory_iterator entry(process / "fd", error), end; !error && entry != end; entry.increment(error)) {
    if (!is_on(entry->path(), mount)) continue;
    const std::string path = target_of(entry->path());
    if (seen.insert(path).second) held.emplace_back(path, "open");
  }
  for (const std::string& path : mapped_files(process, mount)) {
    if (!seen.contains(path)) held.emplace_back(path, "mapped");
  }
  return held;
}

// Calls `visit` with each process's number and folder in /proc, until it returns false.
void for_each_process(const std::function<bool(pid_t, const files::path&)>& visit) {
  std::error_code error;
  for (files::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const auto pid = io::parse_number<pid_t>(entry->path().filename().string());
    if (pid && !visit(*pid, entry->path())) return;
  }
}

}  // namespace

std::vector<Holder> find_holders(const MountEntry& mount, size_t limit) {
  std::vector<Holder> holders;
  for_each_process([&](pid_t pid, const files::path& process) {
    for (auto& [path, how] : held_by(process, mount)) {
      if (holders.size() < limit) holders.push_back({pid, command_of(process), path, how});
    }
    return holders.size() < limit;
  });
  return holders;
}

std::vector<Holder> find_copies(const MountEntry& mount, size_t limit) {
  std::vector<Holder> copies;
  const std::string own = target_of("/proc/self/ns/mnt");
  std::set<std::string> seen;
  for_each_process([&](pid_t pid, const files::path& process) {
    std::error_code hidden;
    const std::string space = files::read_symlink(process / "ns/mnt", hidden);
    const auto table = io::read_file((process / "mountinfo").string());
    if (hidden || !table || !seen.insert(space).second) return true;
    for (const MountEntry& entry : io::parse_mount_table(table.value())) {
      if (entry.device != mount.device || !io::is_ckptfs(entry) || copies.size() == limit) continue;
      copies.push_back({space == own ? 0 : pid, command_of(process), entry.mountpoint, "mounted"});
    }
    return copies.size() < limit;
  });
  return copies;
}

}  // namespace ckptfs::fs::cli

#include "fs/cli/store_daemon.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "fs/cli/format.h"
#include "fs/cli/system.h"
#include "io/fuse_connection.h"
#include "io/image_file.h"

namespace ckptfs::fs::cli {
namespace {

// The process that holds a lock on the file, by a line of /proc/locks: "12: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0
// EOF"
std::optional<pid_t> locker_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return std::nullopt;
  const auto locks = read_text("/proc/locks");
  if (!locks) return std::nullopt;
  std::istringstream lines(locks.value());
  for (std::string line; std::getline(lines, line);) {
    int pid = 0;
    unsigned major = 0, minor = 0;
    unsigned long long inode = 0;
    if (std::sscanf(line.c_str(), "%*s FLOCK %*s WRITE %d %x:%x:%llu", &pid, &major, &minor, &inode) != 4) continue;
    if (pid > 0 && inode == st.st_ino && makedev(major, minor) == st.st_dev) return pid;
  }
  return std::nullopt;
}

// A killed thread has SIGKILL pending until it has left the kernel. If some threads of the process cannot leave, the
// first thread is a zombie meanwhile.
bool was_killed(pid_t pid) {
  constexpr unsigned long long kKill = 1ULL << 8;
  const auto status = read_text("/proc/" + std::to_string(pid) + "/status");
  if (!status) return false;
  std::istringstream lines(status.value());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("State:\tZ") || line.starts_with("State:\tX")) return true;
    const bool pending = line.starts_with("SigPnd:") || line.starts_with("ShdPnd:");
    if (pending && (std::strtoull(line.c_str() + 7, nullptr, 16) & kKill) != 0) return true;
  }
  return false;
}

}  // namespace

std::optional<StoreDaemon> daemon_of_store(const std::string& store) {
  for (const std::string& file : {store + "/" + io::kImageName, store + "/lock"}) {
    const auto pid = locker_of(file);
    if (!pid) continue;
    auto handle = handle_on(*pid);
    if (!handle) continue;
    StoreDaemon daemon{std::move(*handle), was_killed(*pid), false};
    const auto name = read_text("/proc/" + std::to_string(*pid) + "/comm");
    daemon.leaving = name && name.value().starts_with(kLeavingName);
    return daemon;
  }
  return std::nullopt;
}

void release_hung_mounts() {
  const auto mounts = io::mount_table();
  if (!mounts) return;
  for (const MountEntry& mount : mounts.value()) {
    if (!io::is_ckptfs(mount)) continue;
    const auto daemon = daemon_of_store(mount.source);
    if (!daemon || !daemon->killed) continue;
    const auto is_still_it = [&mount] {
      const auto now = io::mount_table();
      return now && std::ranges::any_of(now.value(), [&mount](const MountEntry& other) {
               return other.id == mount.id && other.device == mount.device;
             });
    };
    const auto aborted = io::abort_connection(mount.device, is_still_it);
    if (aborted || aborted.error().errno_value() == ENOENT) continue;  // ENOENT: it has ended meanwhile
    std::fprintf(stderr, "ckptfs: %s: its daemon was killed and does not end: %s\n",
                 printable(mount.mountpoint).c_str(), aborted.error().message().c_str());
  }
}

}  // namespace ckptfs::fs::cli

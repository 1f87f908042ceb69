#include "fs/cli/store_daemon.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <vector>

#include "fs/cli/format.h"
#include "fs/cli/system.h"
#include "io/fd.h"
#include "io/fuse_connection.h"
#include "io/image_file.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

// The process that holds a lock on the file, by a line of /proc/locks: "12: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0
// EOF"
std::optional<pid_t> locker_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return std::nullopt;
  const auto locks = io::read_file("/proc/locks");
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
  const auto status = io::read_file("/proc/" + std::to_string(pid) + "/status");
  if (!status) return false;
  std::istringstream lines(status.value());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("State:\tZ") || line.starts_with("State:\tX")) return true;
    const bool pending = line.starts_with("SigPnd:") || line.starts_with("ShdPnd:");
    if (pending && (std::strtoull(line.c_str() + 7, nullptr, 16) & kKill) != 0) return true;
  }
  return false;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ended;  // what it is told of has ended
  for (std::filesystem::directory_iterator at(folder, ended), end; !ended && at != end; at.increment(ended)) {
    names.push_back(at->path().filename());
  }
  return names;
}

std::vector<pid_t> killed_daemons() {
  std::vector<pid_t> found;
  for (const std::string& name : names_in("/proc")) {
    const auto pid = io::parse_number<pid_t>(name);
    if (!pid) continue;
    const auto command = io::read_file("/proc/" + name + "/comm");
    if (command && command.value().starts_with("ckptfs") && was_killed(*pid)) found.push_back(*pid);
  }
  return found;
}

// The FUSE connections of the process, by their numbers (Linux 6.17 tells them). Each thread is looked at: those that
// are left may have descriptors of their own (KernelChannel::leave_descriptors).
std::set<std::string> connections_of(pid_t pid) {
  constexpr std::string_view kKey = "fuse_connection:\t";
  std::set<std::string> numbers;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task/";
  for (const std::string& task : names_in(tasks)) {
    const std::string descriptors = tasks + task + "/fdinfo/";
    for (const std::string& descriptor : names_in(descriptors)) {
      const auto text = io::read_file(descriptors + descriptor);
      const size_t at = text ? text.value().find(kKey) : std::string::npos;
      if (at == std::string::npos) continue;
      const size_t begin = at + kKey.size();
      numbers.insert(text.value().substr(begin, text.value().find('\n', begin) - begin));
      break;  // a daemon has one
    }
  }
  return numbers;
}

// Has the kernel given the number to a mount whose daemon lives?
bool is_of_another(const std::string& number) {
  const auto mounts = io::mount_table();
  return !mounts || std::ranges::any_of(mounts.value(), [&number](const MountEntry& mount) {
    if (mount.device != "0:" + number) return false;
    const auto daemon = io::is_ckptfs(mount) ? daemon_of_store(mount.source) : std::nullopt;
    return !io::is_ckptfs(mount) || (daemon && !daemon->killed);
  });
}

void abort_connections_of(pid_t pid) {
  const auto daemon = handle_on(pid);
  if (!daemon || wait_for_end(*daemon, [] { return false; })) return;
  for (const std::string& number : connections_of(pid)) {
    const auto is_still_it = [&] {
      return was_killed(pid) && connections_of(pid).contains(number) && !is_of_another(number);
    };
    const auto aborted = io::abort_connection("0:" + number, is_still_it);
    if (aborted || aborted.error().errno_value() == ENOENT) continue;  // ENOENT: it has ended meanwhile
    std::fprintf(stderr, "ckptfs: the daemon %d was killed and does not end: %s\n", pid,
                 aborted.error().message().c_str());
  }
}

}  // namespace

std::optional<StoreDaemon> daemon_of_store(const std::string& store) {
  for (const std::string& file : {store + "/" + io::kImageName, store + "/lock"}) {
    const auto pid = locker_of(file);
    if (!pid) continue;
    auto handle = handle_on(*pid);
    if (!handle) continue;
    StoreDaemon daemon{std::move(*handle), was_killed(*pid), false};
    const auto name = io::read_file("/proc/" + std::to_string(*pid) + "/comm");
    daemon.leaving = name && name.value().starts_with(kLeavingName);
    return daemon;
  }
  return std::nullopt;
}

void release_hung_mounts() {
  for (const pid_t pid : killed_daemons()) abort_connections_of(pid);
  // Before Linux 6.17 only a mount that is still in the table leads to its connection.
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

#include "fs/cli/daemon_probe.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "fs/cli/client.h"
#include "fs/cli/system.h"
#include "io/fd.h"

namespace ckptfs::fs::cli {

std::optional<DaemonHandle> handle_on(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  DaemonHandle daemon;
  daemon.pid = pid;
  daemon.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!daemon.process) return std::nullopt;
  // If the daemon is in another pid namespace, its number means another process here.
  const auto name = io::read_file("/proc/" + std::to_string(pid) + "/comm");
  if (!name || !name.value().starts_with("ckptfs")) return std::nullopt;
  return daemon;
}

DaemonProbe probe_daemon(const MountEntry& mount) {
  const auto status = ask_status(mount);
  if (status) return {false, handle_on(status.value().value("pid", 0))};
  return {status.error().errno_value() == ENOTCONN, std::nullopt};
}

namespace {

// Its first thread has ended. The others, if there are any, are about to.
bool is_zombie(pid_t pid) {
  const auto status = io::read_file("/proc/" + std::to_string(pid) + "/status");
  return status && status.value().find("\nState:\tZ") != std::string::npos;
}

}  // namespace

bool wait_for_end(const DaemonHandle& daemon, const std::function<bool()>& still_waiting) {
  constexpr int kSecondsOfAZombie = 5;
  pollfd ended{daemon.process.get(), POLLIN, 0};
  bool asked = false;
  for (int seconds = 0; seconds < kSecondsOfAZombie;) {
    const int count = ::poll(&ended, 1, 1000);
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return true;
    if (count < 0) continue;
    if (!std::exchange(asked, true) && !still_waiting()) return false;
    seconds = is_zombie(daemon.pid) ? seconds + 1 : 0;
  }
  return true;
}

}  // namespace ckptfs::fs::cli

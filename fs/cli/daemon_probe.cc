#include "fs/cli/daemon_probe.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {

std::optional<DaemonHandle> handle_on(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  DaemonHandle daemon;
  daemon.pid = pid;
  daemon.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!daemon.process) return std::nullopt;
  // If the daemon is in another pid namespace, its number means another process here.
  const auto name = read_text("/proc/" + std::to_string(pid) + "/comm");
  if (!name || !name.value().starts_with("ckptfs")) return std::nullopt;
  return daemon;
}

DaemonProbe probe_daemon(const MountEntry& mount) {
  const auto status = ask_status(mount);
  if (status) return {false, handle_on(status.value().value("pid", 0))};
  return {status.error().errno_value() == ENOTCONN, std::nullopt};
}

bool wait_for_end(const DaemonHandle& daemon, const std::function<bool()>& still_waiting) {
  pollfd ended{daemon.process.get(), POLLIN, 0};
  int timeout = 1000;
  for (;;) {
    const int count = ::poll(&ended, 1, timeout);
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return true;
    if (count == 0) {
      if (!still_waiting()) return false;
      timeout = -1;
    }
  }
}

}  // namespace ckptfs::fs::cli

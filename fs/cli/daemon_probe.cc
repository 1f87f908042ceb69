#include "fs/cli/daemon_probe.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

constexpr int kProbeLimitMs = 5000;
constexpr int kGraceMs = 2000;

struct Answer {
  pid_t pid = 0;
  int error = ETIMEDOUT;
};

[[noreturn]] void answer_from_child(const MountEntry& mount, int pipe) {
  Answer answer;
  if (const auto status = ask_daemon(mount, "status", nlohmann::json::object())) {
    answer = {status.value().value("pid", 0), 0};
  } else {
    answer.error = status.error().errno_value();
  }
  const bool written = ::write(pipe, &answer, sizeof answer) == sizeof answer;
  ::_exit(written ? 0 : 1);
}

// Waits until the killed child ends, but not for long. While its request waits in the kernel it ends at once. If the
// daemon has taken the request up, the child lives as long as the daemon hangs.
void wait_a_moment(pid_t child) {
  const io::Fd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ended{process.get(), POLLIN, 0};
  if (process && ::poll(&ended, 1, kGraceMs) == 1) ::waitpid(child, nullptr, 0);
}

Answer ask_in_child(const MountEntry& mount) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const io::Fd read_end(ends[0]);
  io::Fd write_end(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return {};
  if (child == 0) answer_from_child(mount, write_end.get());
  write_end.reset();
  pollfd ready{read_end.get(), POLLIN, 0};
  Answer answer;
  const bool answered =
      ::poll(&ready, 1, kProbeLimitMs) == 1 && ::read(read_end.get(), &answer, sizeof answer) == sizeof answer;
  ::kill(child, SIGKILL);
  wait_a_moment(child);
  return answered ? answer : Answer{};
}

}  // namespace

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
  const Answer answer = ask_in_child(mount);
  // ECONNABORTED is what the first request after its death gets.
  return {answer.error == ENOTCONN || answer.error == ECONNABORTED, handle_on(answer.pid)};
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

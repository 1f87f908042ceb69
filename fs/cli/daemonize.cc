#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "fs/cli/daemon_process.h"
#include "fs/cli/progress.h"
#include "fs/cli/system.h"
#include "io/fd.h"

namespace ckptfs::fs::cli {
namespace {

constexpr const char* kOk = "ok";
constexpr int kReportFd = 3;

Result<> point_at_null(std::initializer_list<int> descriptors) {
  TRY_ASSIGN(const io::Fd null, io::open_at(AT_FDCWD, "/dev/null", O_RDWR));
  for (const int fd : descriptors) {
    if (::dup2(null.get(), fd) < 0) return last_error("/dev/null");
  }
  return success();
}

// Leaves the caller's session and folder. Closes all descriptors except stdio and the pipe, which becomes kReportFd.
Result<io::Fd> leave_caller(io::Fd pipe) {
  if (::setsid() < 0) return last_error("setsid");
  if (::chdir("/") != 0) return last_error("/");
  if (pipe.get() != kReportFd) {
    if (::dup2(pipe.get(), kReportFd) < 0) return last_error("dup2");
    pipe.reset(kReportFd);
  }
  if (::fcntl(kReportFd, F_SETFD, FD_CLOEXEC) != 0) return last_error("fcntl");
  if (::close_range(kReportFd + 1, ~0U, 0) != 0) return last_error("close_range");
  TRY(point_at_null({STDIN_FILENO}));
  return pipe;
}

int child(io::Fd pipe, const std::function<int(const StartReport&)>& body) {
  auto left = leave_caller(std::move(pipe));
  if (!left) return fail(left.error());
  io::Fd report_pipe = std::move(left).value();
  return body([&report_pipe](const Result<>& started) {
    Result<> outcome = started;
    if (outcome) outcome = point_at_null({STDOUT_FILENO, STDERR_FILENO});
    const std::string text = outcome ? kOk : outcome.error().message();
    // If the write fails, the parent has gone, and needs no report.
    [[maybe_unused]] const ssize_t written = ::write(report_pipe.get(), text.data(), text.size());
    report_pipe.reset();
  });
}

}  // namespace

int daemonize(const std::string& name, const std::function<int(const StartReport&)>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(name, last_error("pipe"));
  io::Fd read_end(ends[0]);
  io::Fd write_end(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return fail(name, last_error("fork"));
  if (pid == 0) {
    read_end.reset();
    std::exit(child(std::move(write_end), body));
  }
  write_end.reset();
  const auto told = [&] {
    const Waiting waiting("mounting " + name);
    return io::read_to_end(read_end.get(), name);
  }();
  const std::string text = told ? told.value() : "";
  if (text == kOk) return kSuccess;
  int status = 0;
  ::waitpid(pid, &status, 0);  // the child has ended, or is about to
  if (!text.empty()) return fail(name, Error(EIO, text));
  const std::string how = WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                                              : "ended with code " + std::to_string(WEXITSTATUS(status));
  return fail(name, Error(EIO, "the daemon " + how + " while it started; its log (--log FILE) may say why"));
}

}  // namespace ckptfs::fs::cli

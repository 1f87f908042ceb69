#include "fs/cli/limited_call.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>

#include "io/fd.h"
#include "io/retry.h"

namespace ckptfs::fs::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{5};
constexpr int kGraceMs = 2000;

// What the child sends: an errno, or 0, and then the text of the error or of the result.
// What throws ends this process: it must not return into the parent's code.
[[noreturn]] void answer_from_child(const std::function<Result<std::string>()>& work, int pipe) noexcept {
  const Result<std::string> result = work();
  const int failed = result ? 0 : result.error().errno_value();
  std::string answer(sizeof failed, '\0');
  std::memcpy(answer.data(), &failed, sizeof failed);
  answer += result ? result.value() : result.error().message();
  for (size_t done = 0; done < answer.size();) {
    const ssize_t written =
        io::retry_interrupted([&] { return ::write(pipe, answer.data() + done, answer.size() - done); });
    if (written < 0) ::_exit(1);
    done += static_cast<size_t>(written);
  }
  ::_exit(0);
}

Result<std::string> decode(const std::string& answer) {
  int failed = 0;
  if (answer.size() < sizeof failed) return Error(EIO, "the process that was to ask has ended");
  std::memcpy(&failed, answer.data(), sizeof failed);
  std::string text = answer.substr(sizeof failed);
  if (failed != 0) return Error(failed, std::move(text));
  return text;
}

// Reads until the child closes its end.
Result<std::string> receive(int pipe) {
  const auto end = Clock::now() + kLimit;
  std::string answer;
  for (std::array<char, 65536> buffer{};;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{pipe, POLLIN, 0};
    const int count =
        io::retry_interrupted([&] { return ::poll(&ready, 1, static_cast<int>(std::max<int64_t>(left, 0))); });
    if (count < 0) return last_error("poll");
    if (count == 0) return Error(ETIMEDOUT);
    const ssize_t got = io::retry_interrupted([&] { return ::read(pipe, buffer.data(), buffer.size()); });
    if (got < 0) return last_error("read");
    if (got == 0) return decode(answer);
    answer.append(buffer.data(), static_cast<size_t>(got));
  }
}

// Waits until the killed child ends, but not for long. While its request waits in the kernel it ends at once. If the
// daemon has taken the request up, the child lives as long as the daemon hangs.
void wait_a_moment(pid_t child) {
  const io::Fd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ended{process.get(), POLLIN, 0};
  if (process && ::poll(&ended, 1, kGraceMs) == 1) ::waitpid(child, nullptr, 0);
}

}  // namespace

Result<std::string> call_with_limit(const std::function<Result<std::string>()>& work) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return last_error("pipe");
  const io::Fd read_end(ends[0]);
  io::Fd write_end(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return last_error("fork");
  if (child == 0) answer_from_child(work, write_end.get());
  write_end.reset();
  auto answer = receive(read_end.get());
  ::kill(child, SIGKILL);
  wait_a_moment(child);
  return answer;
}

}  // namespace ckptfs::fs::cli

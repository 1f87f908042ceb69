#include "io/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "io/fd.h"
#include "io/retry.h"
#include "io/text.h"

namespace ckptfs::io {

namespace {

struct Pipe {
  Fd reader;
  Fd writer;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return last_error("pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

// The settings for posix_spawn: descriptors 0, 1 and 2, and default signals.
class SpawnSettings {
 public:
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawnattr_destroy(&attributes_);
    ::posix_spawn_file_actions_destroy(&actions_);
  }

  // Returns 0 or an errno.
  int prepare(int out, int err) {
    sigset_t none;
    sigset_t usual;
    ::sigemptyset(&none);
    ::sigfillset(&usual);
    const int steps[] = {
        ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0),
        ::posix_spawn_file_actions_adddup2(&actions_, out, STDOUT_FILENO),
        ::posix_spawn_file_actions_adddup2(&actions_, err, STDERR_FILENO),
        ::posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1),
        ::posix_spawnattr_setsigmask(&attributes_, &none),
        ::posix_spawnattr_setsigdefault(&attributes_, &usual),
        ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF),
    };
    for (const int step : steps) {
      if (step != 0) return step;
    }
    return 0;
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_in_english() {
  std::vector<std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "LC_ALL=", 7) != 0) result.emplace_back(*entry);
  }
  result.emplace_back("LC_ALL=C");
  return result;
}

Result<pid_t> spawn(std::vector<std::string> arguments, int out, int err) {
  TRY_ASSIGN(const std::string program, find_program(arguments.at(0)));
  std::vector<std::string> environment = environment_in_english();
  SpawnSettings settings;
  pid_t pid = -1;
  int failed = settings.prepare(out, err);
  if (failed == 0) {
    failed = ::posix_spawn(&pid, program.c_str(), settings.actions(), settings.attributes(), pointers(arguments).data(),
                           pointers(environment).data());
  }
  if (failed != 0) return Error(failed, program + ": " + std::system_category().message(failed));
  return pid;
}

// Reads both pipes until the program, and every process that inherited them, has closed them.
void collect(const Fd& out, const Fd& err, pid_t pid, const std::atomic<bool>* stop, ProcessOutput& output) {
  constexpr int kBetween = 200;  // ms
  std::array<pollfd, 2> waiting = {pollfd{out.get(), POLLIN, 0}, pollfd{err.get(), POLLIN, 0}};
  const std::array<std::string*, 2> texts = {&output.out, &output.err};
  char buffer[16384];
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    const int patience = stop == nullptr ? -1 : kBetween;
    if (retry_interrupted([&] { return ::poll(waiting.data(), waiting.size(), patience); }) < 0) return;
    if (stop != nullptr && stop->load()) {
      ::kill(pid, SIGTERM);
      stop = nullptr;
    }
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      const ssize_t n = retry_interrupted([&] { return ::read(waiting[i].fd, buffer, sizeof buffer); });
      if (n > 0) {
        texts[i]->append(buffer, static_cast<size_t>(n));
      } else {
        waiting[i].fd = -1;
      }
    }
  }
}

Result<int> wait_for(pid_t pid) {
  int status = 0;
  if (retry_interrupted([&] { return ::waitpid(pid, &status, 0); }) < 0) return last_error("waitpid");
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  const std::string folders =
      (path == nullptr ? std::string() : std::string(path) + ":") + "/usr/sbin:/sbin:/usr/bin:/bin";
  for (std::string_view rest = folders; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    const std::string candidate = std::string(folder) + "/" + name;
    if (!folder.empty() && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return Error(ENOENT, name + ": no such program (is its package installed?)");
}

Result<ProcessOutput> run_process(const std::vector<std::string>& arguments, const std::atomic<bool>* stop) {
  if (arguments.empty()) return Error(EINVAL, "no program to run");
  TRY_ASSIGN(Pipe out, make_pipe());
  TRY_ASSIGN(Pipe err, make_pipe());
  TRY_ASSIGN(const pid_t pid, spawn(arguments, out.writer.get(), err.writer.get()));
  out.writer.reset();
  err.writer.reset();
  ProcessOutput output;
  collect(out.reader, err.reader, pid, stop, output);
  TRY_ASSIGN(output.status, wait_for(pid));
  return output;
}

Result<std::string> run_checked(const std::vector<std::string>& arguments) {
  TRY_ASSIGN(ProcessOutput output, run_process(arguments));
  if (output.status == 0) return std::move(output.out);
  std::string words = trimmed(output.err);
  if (words.empty()) words = trimmed(output.out);
  return Error(EIO, joined(arguments, " ") + ": exit status " + std::to_string(output.status) +
                        (words.empty() ? "" : ": ") + words);
}

}  // namespace ckptfs::io

#include "meta/tree/process.h"

#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "io/boot.h"
#include "io/digest.h"
#include "io/fd.h"
#include "io/mutex.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

using namespace std::string_literals;

struct Status {
  pid_t pid = 0;
  uint32_t uid = 0;
};

// /proc/TID/status: "Tgid:\t123", "Uid:\t1000\t1000\t..."
Result<Status> read_status(pid_t tid) {
  TRY_ASSIGN(const std::string text, io::read_file("/proc/" + std::to_string(tid) + "/status"));
  const auto read_number = [&text](std::string_view name, auto& number) {
    const size_t at = text.find(name);
    if (at == std::string::npos) return false;
    return std::from_chars(text.data() + at + name.size(), text.data() + text.size(), number).ec == std::errc();
  };
  Status status;
  if (!read_number("\nTgid:\t", status.pid) || !read_number("\nUid:\t", status.uid)) return Error(EBADMSG);
  return status;
}

struct Stat {
  char state = 0;
  pid_t parent = 0;
  uint64_t flags = 0;
  uint64_t threads = 0;
  uint64_t start = 0;  // clock ticks after the boot
};

// /proc/PID/stat. The name in field 2 may hold anything, so count from its end.
Result<Stat> read_stat(pid_t pid) {
  constexpr int kState = 3, kParent = 4, kFlags = 9, kThreads = 20, kStart = 22;  // fields
  TRY_ASSIGN(const std::string text, io::read_file("/proc/" + std::to_string(pid) + "/stat"));
  Stat stat;
  size_t at = text.rfind(')');
  for (int field = 3; field <= kStart && at != std::string::npos; ++field) {
    at = text.find(' ', at + 1);
    if (at == std::string::npos) return Error(EBADMSG);
    if (field == kState && at + 1 < text.size()) stat.state = text[at + 1];
    const char *const begin = text.data() + at + 1, *const end = text.data() + text.size();
    if (field == kParent) std::from_chars(begin, end, stat.parent);
    if (field == kFlags) std::from_chars(begin, end, stat.flags);
    if (field == kThreads) std::from_chars(begin, end, stat.threads);
    if (field == kStart) std::from_chars(begin, end, stat.start);
  }
  return stat;
}

// /proc/PID/environ: "NAME=value\0..."
Result<std::string> read_environment(pid_t pid) {
  TRY_ASSIGN(const std::string text, io::read_file("/proc/" + std::to_string(pid) + "/environ"));
  return '\0' + text;
}

std::optional<std::string_view> value_of(std::string_view environment, std::string_view name) {
  const std::string start = '\0' + std::string(name) + '=';
  const size_t at = environment.find(start);
  if (at == environment.npos) return std::nullopt;
  const std::string_view rest = environment.substr(at + start.size());
  return rest.substr(0, rest.find('\0'));
}

// After the boot.
std::chrono::nanoseconds time_of(uint64_t ticks) {
  static const auto per_second = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  return std::chrono::nanoseconds(ticks * (1'000'000'000 / per_second));
}

bool run_the_same_program(pid_t one, pid_t other) {
  const auto program_of = [](pid_t pid) -> std::optional<std::pair<dev_t, ino_t>> {
    struct stat st {};
    if (::stat(("/proc/" + std::to_string(pid) + "/exe").c_str(), &st) != 0) return std::nullopt;
    return std::pair(st.st_dev, st.st_ino);
  };
  const auto program = program_of(one);
  return program && program == program_of(other);
}

// As Python's multiprocessing starts it where it does not fork, or its server that forks.
bool is_spawned(pid_t pid) {
  const auto words = io::read_file("/proc/" + std::to_string(pid) + "/cmdline");
  const auto has = [&words](const std::string& one) { return words.value().find(one) != std::string::npos; };
  return words && (has("\0--multiprocessing-fork"s) || has("multiprocessing.forkserver import main"));
}

// An orphan has another parent, which as a rule runs another program. A server's fork that became another user works
// for that user. `spawned`: what was spawned is looked at, too.
Process find_origin(Process process, uint32_t uid, Stat stat, bool spawned) {
  constexpr uint64_t kForkedWithoutExec = 0x40;  // PF_FORKNOEXEC of linux/sched.h
  for (int most = 8; most > 0; --most) {
    if ((stat.flags & kForkedWithoutExec) == 0 && !(spawned && is_spawned(process.pid))) break;
    const auto parent = read_stat(stat.parent);
    const auto status = read_status(stat.parent);
    if (!parent || !status || status.value().uid != uid || !run_the_same_program(process.pid, stat.parent)) break;
    process = {stat.parent, parent.value().start};
    stat = parent.value();
  }
  return process;
}

FoundProcess ask_process(pid_t tid) {
  const auto status = read_status(tid);
  const auto stat = status ? read_stat(status.value().pid) : Result<Stat>(status.error());
  if (!stat) return {{}, {}, ::kill(tid, 0) != 0 && errno == ESRCH};  // else /proc hides it
  const Process found{status.value().pid, stat.value().start};
  return {found, find_origin(found, status.value().uid, stat.value(), false), false};
}

Process ask_program(const Process& process) {
  const auto status = read_status(process.pid);
  const auto stat = read_stat(process.pid);
  const bool known = status && stat && stat.value().start == process.start;
  return known ? find_origin(process, status.value().uid, stat.value(), true) : process;
}

// Caches the answers for a second. A trainer opens its swap files in bursts, and no kernel uses a number again so soon.
template <typename Question, typename Answer>
class Answers {
 public:
  explicit Answers(Answer (*ask)(Question)) : ask_(ask) {}

  Answer of(const std::remove_cvref_t<Question>& question) {
    const auto time = Clock::now();
    {
      const io::MutexLock lock(mutex_);
      if (time - cleared_ > kRemember) {
        found_.clear();
        cleared_ = time;
      }
      if (const auto at = found_.find(question); at != found_.end()) return at->second;
    }
    const Answer found = ask_(question);
    const io::MutexLock lock(mutex_);
    found_.emplace(question, found);
    return found;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kRemember{1};

  Answer (*const ask_)(Question);
  io::Mutex mutex_;
  Clock::time_point cleared_ GUARDED_BY(mutex_);
  std::map<std::remove_cvref_t<Question>, Answer> found_ GUARDED_BY(mutex_);
};

}  // namespace

FoundProcess find_process(pid_t tid) {
  static Answers<pid_t, FoundProcess> answers(ask_process);
  return tid <= 0 ? FoundProcess() : answers.of(tid);
}

Process find_program(const Process& process) {
  static Answers<const Process&, Process> answers(ask_program);
  return answers.of(process);
}

uint64_t process_start(pid_t tid) {
  static const uint64_t boot = nanoseconds(now()) - static_cast<uint64_t>(io::since_boot().count());
  const uint64_t ticks = find_process(tid).process.start;
  return ticks == 0 ? 0 : boot + static_cast<uint64_t>(time_of(ticks).count());
}

std::chrono::nanoseconds start_of(const Process& process) { return time_of(process.start); }

std::chrono::nanoseconds age_of(const Process& process) { return io::since_boot() - start_of(process); }

// The first thread of a process may end before the others.
bool has_ended(const Process& process) {
  const auto stat = read_stat(process.pid);
  if (!stat) return stat.error().errno_value() == ENOENT || stat.error().errno_value() == ESRCH;
  const bool dead = (stat.value().state == 'Z' || stat.value().state == 'X') && stat.value().threads <= 1;
  return stat.value().start != process.start || dead;
}

Launch launch_of(const Process& process) {
  // The first two of each must be there. The first one is the rank, all others are the same for all ranks.
  static const std::array<std::vector<std::string_view>, 3> launchers{
      {{"RANK", "MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
       {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"},
       {"PMIX_RANK", "PMIX_NAMESPACE"}}};
  const auto environment = read_environment(process.pid);
  if (!environment || has_ended(process)) return {};
  for (unsigned at = 0; at < launchers.size(); ++at) {
    const auto& names = launchers[at];
    const auto rank = value_of(environment.value(), names[0]);
    if (!rank || !value_of(environment.value(), names[1])) continue;
    std::string values;
    for (const std::string_view name : std::span(names).subspan(1))
      values.append(value_of(environment.value(), name).value_or("")) += '\0';
    return {at + 1, io::short_digest_of(values), io::short_digest_of(*rank)};
  }
  return {};
}

std::string process_place() {
  const auto boot = io::boot_id();
  const std::string id = boot ? boot.value() : "unknown";
  std::array<char, 64> name{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size());
  return id + ' ' + (length > 0 ? std::string(name.data(), static_cast<size_t>(length)) : "unknown");
}

}  // namespace ckptfs::meta

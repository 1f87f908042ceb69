#include "meta/tree/process.h"

#include <time.h>
#include <unistd.h>

#include <charconv>
#include <string>
#include <unordered_map>

#include "io/fd.h"
#include "io/mutex.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

// /proc/TID/status: "Tgid:\t123"
pid_t process_of(pid_t tid) {
  const auto status = io::read_file("/proc/" + std::to_string(tid) + "/status");
  if (!status) return 0;
  const size_t at = status.value().find("Tgid:\t");
  pid_t pid = 0;
  if (at != std::string::npos) {
    const std::string& text = status.value();
    std::from_chars(text.data() + at + 6, text.data() + text.size(), pid);
  }
  return pid;
}

// Field 22 of /proc/PID/stat: clock ticks since boot. The name in field 2 may hold anything, so count from its end.
uint64_t start_ticks(pid_t pid) {
  const auto stat = io::read_file("/proc/" + std::to_string(pid) + "/stat");
  if (!stat) return 0;
  const std::string& text = stat.value();
  size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  uint64_t ticks = 0;
  if (at != std::string::npos) std::from_chars(text.data() + at + 1, text.data() + text.size(), ticks);
  return ticks;
}

uint64_t boot_time() {
  timespec boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  return nanoseconds(now()) - nanoseconds(boot);
}

uint64_t ask_process_start(pid_t tid) {
  static const uint64_t boot = boot_time();
  const uint64_t ticks = start_ticks(process_of(tid));
  const auto per_second = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  return ticks == 0 ? 0 : boot + ticks * (1'000'000'000 / per_second);
}

// Caches the answers for a second. A trainer opens its swap files in bursts, and no kernel uses a number again so soon.
class Answers {
 public:
  uint64_t of(pid_t tid) {
    const uint64_t time = nanoseconds(now());
    {
      const io::MutexLock lock(mutex_);
      if (time - cleared_ > kRemember) {
        starts_.clear();
        cleared_ = time;
      }
      if (const auto at = starts_.find(tid); at != starts_.end()) return at->second;
    }
    const uint64_t start = ask_process_start(tid);
    const io::MutexLock lock(mutex_);
    starts_.emplace(tid, start);
    return start;
  }

 private:
  static constexpr uint64_t kRemember = 1'000'000'000;

  io::Mutex mutex_;
  uint64_t cleared_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<pid_t, uint64_t> starts_ GUARDED_BY(mutex_);  // by thread
};

}  // namespace

uint64_t process_start(pid_t tid) {
  static Answers answers;
  return tid <= 0 ? 0 : answers.of(tid);
}

}  // namespace ckptfs::meta

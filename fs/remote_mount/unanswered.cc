#include "fs/remote_mount/unanswered.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "io/fd.h"

namespace ckptfs::fs::remote_mount {
namespace {

// libfuse calls on_interrupt from within fuse_req_interrupt_func() if the request was interrupted before, and uses the
// request afterwards: it must not be answered there.
thread_local bool adding = false;
thread_local bool interrupted_before = false;

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

// Has the thread a signal that is to end it? If /proc does not tell: yes.
bool is_to_end(pid_t thread) {
  constexpr uint64_t kEnding = bit(SIGINT) | bit(SIGTERM) | bit(SIGQUIT) | bit(SIGHUP) | bit(SIGKILL);
  constexpr uint64_t kHarmless = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) | bit(SIGWINCH);  // unless they are caught
  const auto status = io::read_file("/proc/" + std::to_string(thread) + "/status");
  if (thread == 0 || !status) return true;
  const auto mask = [&](const std::string& name) {
    const size_t at = status.value().find("\n" + name + ":");
    return at == std::string::npos ? 0 : std::strtoull(status.value().c_str() + at + name.size() + 2, nullptr, 16);
  };
  const uint64_t pending = (mask("SigPnd") | mask("ShdPnd")) & ~(mask("SigBlk") | mask("SigIgn"));
  return (pending & (kEnding | ~(mask("SigCgt") | kHarmless))) != 0;
}

}  // namespace

void Unanswered::add(const std::shared_ptr<Entry>& entry, fuse_interrupt_func_t on_interrupt) {
  {
    const io::MutexLock lock(mutex_);
    entry->number = ++last_;
    entries_.emplace(entry->number, entry);
  }
  adding = true;
  interrupted_before = false;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a number for interrupt()
  fuse_req_interrupt_func(entry->request, on_interrupt, reinterpret_cast<void*>(entry->number));
  adding = false;
  if (interrupted_before) interrupt(entry->number);
}

void Unanswered::interrupt(uint64_t number) {
  if (adding) {
    interrupted_before = true;
    return;
  }
  std::shared_ptr<Entry> entry;
  {
    const io::MutexLock lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end()) return;  // it was answered this moment
    entry = found->second;
  }
  if (entry->reads && !is_to_end(entry->thread)) return;
  remove(number);
  if (!entry->answered.exchange(true)) fuse_reply_err(entry->request, EINTR);
}

void Unanswered::remove(uint64_t number) {
  const io::MutexLock lock(mutex_);
  entries_.erase(number);
}

}  // namespace ckptfs::fs::remote_mount

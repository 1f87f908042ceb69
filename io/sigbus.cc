#include "io/sigbus.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <mutex>

namespace ckptfs::io {
namespace {

thread_local sigjmp_buf* volatile way_out = nullptr;

// The jump leaves the handler for good, so the signals that are blocked in it are unblocked here. While SIGBUS is
// blocked, the next one would end the process.
void leave_access(int, siginfo_t*, void* interrupted) {
  if (way_out != nullptr) {
    pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(interrupted)->uc_sigmask, nullptr);
    siglongjmp(*way_out, 1);
  }
  signal(SIGBUS, SIG_DFL);  // the access is repeated, and then ends the process
}

void take_over() {
  struct sigaction action {};
  action.sa_sigaction = leave_access;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

bool run_access(void (*access)(void*), void* context) {
  static std::once_flag once;
  std::call_once(once, take_over);
  sigjmp_buf place;
  if (sigsetjmp(place, 0) != 0) {
    way_out = nullptr;
    return false;
  }
  way_out = &place;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  access(context);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  way_out = nullptr;
  return true;
}

}  // namespace ckptfs::io

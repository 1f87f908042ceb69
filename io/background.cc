#include "io/background.h"

#include <linux/ioprio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/log.h"
#include "io/result.h"

namespace ckptfs::io {

void become_background_thread() {
  // SCHED_IDLE would be too low: the thread takes locks that other threads wait for.
  constexpr int kNice = 10;
  if (::syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)) != 0) {
    log::warn("background I/O goes on at normal priority: {}", last_error("ioprio_set").message());
  }
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice) != 0) {
    log::warn("background work goes on at normal priority: {}", last_error("setpriority").message());
  }
}

}  // namespace ckptfs::io

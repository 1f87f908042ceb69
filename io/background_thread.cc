#include "io/background_thread.h"

#include <linux/ioprio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "io/log.h"
#include "io/result.h"

namespace ckptfs::io {
namespace {

void lower_priority() {
  // SCHED_IDLE would be too low: the thread takes locks that other threads wait for.
  constexpr int kNice = 10;
  if (::syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)) != 0) {
    log::warn("background I/O goes on at normal priority: {}", last_error("ioprio_set").message());
  }
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice) != 0) {
    log::warn("background work goes on at normal priority: {}", last_error("setpriority").message());
  }
}

}  // namespace

void BackgroundThread::start(std::function<void()> work, Priority priority) {
  thread_ = std::jthread([this, work = std::move(work), priority](std::stop_token stop) {
    stop_ = std::move(stop);
    if (priority == Priority::low) lower_priority();
    work();
  });
}

void BackgroundThread::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void BackgroundThread::wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  wake_.notify_one();
}

bool BackgroundThread::wait() {
  const MutexLock lock(mutex_);
  wake_.wait(mutex_, stop_, [this]() REQUIRES(mutex_) { return woken_; });
  woken_ = false;
  return !is_stopping();
}

bool BackgroundThread::wait_for(std::chrono::nanoseconds time) {
  const MutexLock lock(mutex_);
  wake_.wait_for(mutex_, stop_, time, [this]() REQUIRES(mutex_) { return woken_; });
  woken_ = false;
  return !is_stopping();
}

}  // namespace ckptfs::io

#include "fs/workers.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "io/aligned_buffer.h"
#include "io/log.h"
#include "io/wake_latency.h"

namespace ckptfs::fs {

namespace {

constexpr size_t kWriteHeader = sizeof(fuse_in_header) + sizeof(fuse_write_in);
// libfuse receives up to max_write and a page for the headers; the payload begins anywhere in the second page.
constexpr size_t kReceive = Workers::kPage + Workers::kPage + Workers::kLargestWrite + Workers::kPage;

// Where in its page the payload of the next write should begin, after `request`: where the file's bytes do, so that
// those which begin a page of the file begin one of the memory too, and need no copy for O_DIRECT. Writes at unaligned
// offsets mostly come in streams whose offsets differ by whole pages; any other is copied, that is all.
size_t expected_shift(const fuse_buf& request, size_t shift) {
  fuse_in_header header{};
  std::memcpy(&header, request.mem, sizeof header);
  if (header.opcode != FUSE_WRITE || request.size < kWriteHeader) return shift;
  fuse_write_in write{};
  std::memcpy(&write, static_cast<const std::byte*>(request.mem) + sizeof header, sizeof write);
  return write.offset % alignof(uint64_t) == 0 ? write.offset % Workers::kPage : 0;  // headers are read where they lie
}

// Requests that come one at a time: so many, and so close to each other.
constexpr unsigned kPrompt = 32;
constexpr std::chrono::microseconds kClose{500};
constexpr std::chrono::seconds kLetGo{1};  // after the last of them

// Interrupts the read that a thread waits in.
constexpr int kWakeSignal = SIGUSR2;
void wake_nothing(int) {}

void install_wake_signal() {
  struct sigaction action {};
  action.sa_handler = wake_nothing;
  sigemptyset(&action.sa_mask);
  sigaction(kWakeSignal, &action, nullptr);
}

// Signals that are the main thread's to take are blocked in threads begun within its scope.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&blocked, number);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

unsigned Workers::suitable() { return std::clamp(4 * std::thread::hardware_concurrency(), 8U, 32U); }

Result<> Workers::run() {
  install_wake_signal();
  std::unique_lock lock(mutex_);
  TRY(add_thread());
  wait_for_end(lock);
  // A signal is lost on a thread that is about to wait, so again until all have ended.
  while (!changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return serving_ == 0; })) {
    for (std::thread& thread : threads_) pthread_kill(thread.native_handle(), kWakeSignal);
  }
  std::list<std::thread> ended = std::move(threads_);
  lock.unlock();
  for (std::thread& thread : ended) thread.join();
  return outcome_;
}

void Workers::wait_for_end(std::unique_lock<std::mutex>& lock) {
  io::WakeLatency latency;
  bool refused = false;
  const auto ended = [this] { return stopped_ || serving_ == 0; };
  while (!ended()) {
    if (latency.is_held()) {
      changed_.wait_for(lock, kLetGo, ended);
    } else {
      changed_.wait(lock, [&] { return ended() || (prompt_ && !refused); });
    }
    const bool wanted = std::exchange(prompt_, false);
    if (wanted == latency.is_held()) continue;
    lock.unlock();
    if (!wanted) latency.let_go();
    if (const auto held = wanted ? latency.hold() : success(); !held) {
      refused = true;
      log::warn("processors are not kept from halting during copies: {}", held.error().message());
    }
    lock.lock();
  }
}

// With mutex_ held.
void Workers::note_arrival() {
  const auto now = Clock::now();
  const bool alone = waiting_ + 1 == serving_;
  const bool close = now - std::exchange(arrived_, now) < kClose;
  one_at_a_time_ = alone && close ? one_at_a_time_ + 1 : 0;
  if (one_at_a_time_ >= kPrompt && !std::exchange(prompt_, true)) changed_.notify_all();
}

void Workers::stop() {
  fuse_session_exit(session_);
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

// With mutex_ held.
Result<> Workers::add_thread() {
  const SignalsBlocked blocked;
  try {
    threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error& error) {
    return Error(EAGAIN, std::string("no thread to serve requests: ") + error.what());
  }
  ++serving_;
  ++waiting_;
  return success();
}

void Workers::serve() {
  pthread_setname_np(pthread_self(), "fuse_worker");
  io::AlignedBuffer memory;
  const auto room = memory.get(kReceive);
  Result<> outcome = success();
  if (room.empty()) outcome = Error(ENOMEM, "no memory to receive requests into");
  size_t shift = 0;
  while (outcome && !fuse_session_exited(session_)) {
    fuse_buf request{};
    request.mem = room.data() + kPage + shift - kWriteHeader;
    const int received = fuse_session_receive_buf(session_, &request);
    if (received > 0) {
      shift = expected_shift(request, shift);
      serve_one(request);
    } else if (received != -EINTR) {
      if (received < 0) outcome = Error(-received, "receiving requests from the kernel");
      break;
    }
  }
  const std::lock_guard lock(mutex_);
  --serving_;
  --waiting_;
  if (!outcome && outcome_) outcome_ = outcome;
  stopped_ = true;
  fuse_session_exit(session_);
  changed_.notify_all();
}

void Workers::serve_one(fuse_buf& request) {
  {
    const std::lock_guard lock(mutex_);
    --waiting_;
    note_arrival();
    if (waiting_ == 0 && serving_ < most_ && !stopped_) {
      if (const auto added = add_thread(); !added) log::warn("{}; {} serve", added.error().message(), serving_);
    }
  }
  fuse_session_process_buf(session_, &request);
  const std::lock_guard lock(mutex_);
  ++waiting_;
}

}  // namespace ckptfs::fs

#include "fs/workers.h"

#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "io/aligned_buffer.h"
#include "io/log.h"
#include "io/wake_latency.h"

namespace ckptfs::fs {

namespace {

// A request is received in two parts, so that each lies as it needs: its headers where C allows them to be read, and
// the payload of a write where in its page the file's bytes lie (those which begin a page of the file begin one of the
// memory too, and need no copy for O_DIRECT). Whatever else is longer than a write's headers is put together again.
//
//   memory  | shift | payload of a write ...     | headers | address of the payload, or the rest of the request
//   at      0                                    kHeaders  kHeaders + kWriteHeaders
struct WriteHeaders {
  fuse_in_header in;
  fuse_write_in write;
};
constexpr size_t kWriteHeaders = sizeof(WriteHeaders);
constexpr size_t kHeaders = Workers::kLargestWrite + Workers::kPage;
// What is no write can be as large as one (FORGET in batches).
constexpr size_t kReceive = kHeaders + kWriteHeaders + Workers::kLargestWrite;

// Where in its page the payload of the next write should begin, after this one: writes at unaligned offsets mostly come
// in streams whose offsets differ by whole pages; any other is copied, that is all.
size_t expected_shift(const WriteHeaders& request) { return request.write.offset % Workers::kPage; }

// Receives a request into `memory`. Bytes as libfuse has them; 0: the connection is gone; -errno.
ssize_t receive(int connection, std::span<std::byte> memory, size_t& shift) {
  const auto headers = memory.subspan(kHeaders, kWriteHeaders);
  const auto rest = memory.subspan(kHeaders + kWriteHeaders);
  const auto payload = memory.subspan(shift, Workers::kLargestWrite);
  const std::array<iovec, 2> parts{iovec{headers.data(), headers.size()}, iovec{payload.data(), payload.size()}};
  ssize_t received = 0;
  do {
    received = ::readv(connection, parts.data(), parts.size());
  } while (received < 0 && errno == ENOENT);  // the request was interrupted; there are others
  if (received < 0) return errno == ENODEV ? 0 : -errno;
  if (static_cast<size_t>(received) < sizeof(fuse_in_header)) return -EIO;
  const auto* const request = reinterpret_cast<const WriteHeaders*>(headers.data());
  const size_t more = static_cast<size_t>(received) - std::min(static_cast<size_t>(received), kWriteHeaders);
  if (request->in.opcode != FUSE_WRITE) {
    std::memcpy(rest.data(), payload.data(), more);
  } else if (static_cast<size_t>(received) >= kWriteHeaders) {
    const std::byte* const address = payload.data();
    std::memcpy(rest.data(), &address, sizeof address);
    shift = expected_shift(*request);
  }
  return received;
}

// Requests that come one at a time: so many, and so close to each other.
constexpr unsigned kPrompt = 32;
constexpr std::chrono::microseconds kClose{500};
constexpr std::chrono::seconds kLetGo{1};  // after the last of them

// In lockstep: how long others may wait for a request that takes long after all.
constexpr std::chrono::milliseconds kLook{2};

// In lockstep: how long a caller takes from an answer to its next request, mostly.
constexpr std::chrono::microseconds kNext{20};

thread_local bool in_lockstep = false;

// Waits for a request that comes in a moment without a sleep. To the scheduler two threads that sleep in turn seem to
// need one processor, and it may leave them there: then nothing is read ahead beside the caller. Costs no more than the
// idle processor, which does not halt meanwhile either.
void wait_awake(int connection) {
  pollfd next{connection, POLLIN, 0};
  const auto until = std::chrono::steady_clock::now() + kNext;
  while (::poll(&next, 1, 0) == 0 && std::chrono::steady_clock::now() < until) {
  }
}

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

std::span<const std::byte> Workers::payload_of_write(const char* data, size_t size) {
  const std::byte* address = nullptr;
  std::memcpy(&address, data, sizeof address);
  return {address, size};
}

void Workers::note_lockstep() { in_lockstep = true; }

unsigned Workers::suitable() { return std::clamp(4 * std::thread::hardware_concurrency(), 8U, 32U); }

Result<> Workers::run() {
  install_wake_signal();
  std::unique_lock lock(mutex_);
  TRY(add_thread());
  wait_for_end(lock);
  // A signal is lost on a thread that is about to wait, so again until all have ended.
  while (!changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return serving_ == 0; })) {
    for (Worker& worker : workers_) pthread_kill(worker.thread.native_handle(), kWakeSignal);
  }
  std::list<Worker> ended = std::move(workers_);
  lock.unlock();
  for (Worker& worker : ended) worker.thread.join();
  return outcome_;
}

void Workers::wait_for_end(std::unique_lock<std::mutex>& lock) {
  io::WakeLatency latency;
  bool refused = false;
  Clock::time_point prompt;
  const auto ended = [this] { return stopped_ || serving_ == 0; };
  while (!ended()) {
    if (lockstep_) {
      changed_.wait_for(lock, kLook, ended);
    } else if (latency.is_held()) {
      changed_.wait_for(lock, kLetGo, [&] { return ended() || lockstep_; });
    } else {
      changed_.wait(lock, [&] { return ended() || lockstep_ || (prompt_ && !refused); });
    }
    const auto now = Clock::now();
    if (lockstep_) look_after_lockstep();
    if (std::exchange(prompt_, false)) prompt = now;
    const bool wanted = now - prompt < kLetGo && !refused;
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

// With mutex_ held. Has the threads that wait in vain rest, and ends it when its caller has, or a request takes long.
void Workers::look_after_lockstep() {
  const auto quiet = Clock::now() - arrived_;
  if (waiting_ == 0) {
    if (quiet < kLook) return;
    log::debug("a request of thread {} takes long: others serve, too", caller_);
    lockstep_ = false;
    call_one();
  } else if (quiet > kLetGo) {
    lockstep_ = false;
  } else if (waiting_ > 1) {
    for (Worker& worker : workers_) {
      if (worker.waiting) pthread_kill(worker.thread.native_handle(), kWakeSignal);
    }
  }
}

// With mutex_ held.
void Workers::note_arrival(uint32_t caller) {
  const auto now = Clock::now();
  const bool alone = waiting_ + resting_ + 1 == serving_;
  const bool close = now - std::exchange(arrived_, now) < kClose;
  one_at_a_time_ = alone && close ? one_at_a_time_ + 1 : 0;
  if (one_at_a_time_ >= kPrompt && !std::exchange(prompt_, true)) changed_.notify_all();
  const bool known = caller != 0;  // 0: of the kernel, or of another pid namespace
  if (std::exchange(caller_, caller) != caller || !known || !close) steps_ = 0;
  if (steps_ == 0) lockstep_ = false;
}

// With mutex_ held.
void Workers::note_served() {
  steps_ = std::exchange(in_lockstep, false) ? steps_ + 1 : 0;
  if (steps_ < kPrompt || std::exchange(lockstep_, true)) return;
  log::debug("thread {} copies in lockstep: one thread serves it", caller_);
  changed_.notify_all();
}

void Workers::stop() {
  fuse_session_exit(session_);
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  called_.notify_all();
}

// With mutex_ held.
Result<> Workers::add_thread() {
  const SignalsBlocked blocked;
  Worker& worker = workers_.emplace_back();
  try {
    worker.thread = std::thread([this, &worker] { serve(worker); });
  } catch (const std::system_error& error) {
    workers_.pop_back();
    return Error(EAGAIN, std::string("no thread to serve requests: ") + error.what());
  }
  ++serving_;
  ++waiting_;
  return success();
}

// With mutex_ held. One more waits for requests.
void Workers::call_one() {
  if (resting_ > 0) {
    --resting_;
    ++waiting_;
    ++calls_;
    called_.notify_one();
  } else if (serving_ < most_ && !stopped_) {
    if (const auto added = add_thread(); !added) log::warn("{}; {} serve", added.error().message(), serving_);
  }
}

void Workers::serve(Worker& self) {
  pthread_setname_np(pthread_self(), "fuse_worker");
  io::AlignedBuffer memory;
  const auto room = memory.get(kReceive);
  Result<> outcome = success();
  if (room.empty()) outcome = Error(ENOMEM, "no memory to receive requests into");
  size_t shift = 0;
  while (outcome && !fuse_session_exited(session_)) {
    const ssize_t received = receive(fuse_session_fd(session_), room, shift);
    if (received > 0) {
      fuse_buf request{};
      request.mem = room.data() + kHeaders;
      request.size = static_cast<size_t>(received);
      if (serve_one(self, request)) wait_awake(fuse_session_fd(session_));
    } else if (received == -EINTR) {
      std::unique_lock lock(mutex_);
      rest_in_lockstep(lock, self);
    } else {
      if (received < 0) outcome = Error(static_cast<int>(-received), "receiving requests from the kernel");
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
  called_.notify_all();
}

// Returns whether the next comes in lockstep.
bool Workers::serve_one(Worker& self, fuse_buf& request) {
  {
    const std::lock_guard lock(mutex_);
    --waiting_;
    self.waiting = false;
    note_arrival(static_cast<const fuse_in_header*>(request.mem)->pid);
    if (waiting_ == 0 && !lockstep_) call_one();
  }
  fuse_session_process_buf(session_, &request);
  std::unique_lock lock(mutex_);
  ++waiting_;
  self.waiting = true;
  note_served();
  rest_in_lockstep(lock, self);
  return lockstep_;
}

// Until it is called, if another waits for requests.
void Workers::rest_in_lockstep(std::unique_lock<std::mutex>& lock, Worker& self) {
  if (!lockstep_ || waiting_ == 1) return;
  --waiting_;
  ++resting_;
  self.waiting = false;
  called_.wait(lock, [this] { return calls_ > 0 || stopped_; });
  self.waiting = true;
  if (calls_ > 0) {
    --calls_;  // and counted as waiting
  } else {
    --resting_;
    ++waiting_;
  }
}

}  // namespace ckptfs::fs

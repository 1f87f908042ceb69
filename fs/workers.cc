#include "fs/workers.h"

#include <linux/fuse.h>
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
    const ssize_t received = receive(fuse_session_fd(session_), room, shift);
    if (received > 0) {
      fuse_buf request{};
      request.mem = room.data() + kHeaders;
      request.size = static_cast<size_t>(received);
      serve_one(request);
    } else if (received != -EINTR) {
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

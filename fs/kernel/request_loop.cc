#include "fs/kernel/request_loop.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
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
constexpr size_t kHeaders = RequestLoop::kLargestWrite + RequestLoop::kPage;
// What is no write can be as large as one (FORGET in batches).
constexpr size_t kReceive = kHeaders + kWriteHeaders + RequestLoop::kLargestWrite;

// Where in its page the payload of the next write should begin, after this one: writes at unaligned offsets mostly come
// in streams whose offsets differ by whole pages; any other is copied, that is all.
size_t expected_shift(const WriteHeaders& request) { return request.write.offset % RequestLoop::kPage; }

// Linux 6.18 asks for a copy by FUSE_COPY_FILE_RANGE_64 first (protocol 7.45), which libfuse 3.17 does not know. Were
// it refused, the kernel would ask as before; but refused to two callers at the same moment, it believes that the
// second was refused that too, and copies by READs and WRITEs as long as the mount lasts. The request is the same, and
// its answer of 64 bits is the old one of 32 and zeros, as long as that suffices for the length, which kernels before
// did not look at.
constexpr uint32_t kCopyFileRange64 = 53;
static_assert(std::endian::native == std::endian::little);

void ask_as_before(std::span<std::byte> request) {
  auto* const header = reinterpret_cast<fuse_in_header*>(request.data());
  if (header->opcode != kCopyFileRange64 && header->opcode != FUSE_COPY_FILE_RANGE) return;
  if (request.size() < sizeof *header + sizeof(fuse_copy_file_range_in)) return;
  auto* const copy = reinterpret_cast<fuse_copy_file_range_in*>(header + 1);
  header->opcode = FUSE_COPY_FILE_RANGE;
  copy->len = std::min<uint64_t>(copy->len, uint64_t{1} << 31);
}

// Receives a request into `memory`. Bytes as libfuse has them; 0: the connection is gone; -errno.
ssize_t receive(int connection, std::span<std::byte> memory, size_t& shift) {
  const auto headers = memory.subspan(kHeaders, kWriteHeaders);
  const auto rest = memory.subspan(kHeaders + kWriteHeaders);
  const auto payload = memory.subspan(shift, RequestLoop::kLargestWrite);
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
    ask_as_before(memory.subspan(kHeaders, static_cast<size_t>(received)));
  } else if (static_cast<size_t>(received) >= kWriteHeaders) {
    const std::byte* const address = payload.data();
    std::memcpy(rest.data(), &address, sizeof address);
    shift = expected_shift(*request);
  }
  return received;
}

// Requests that come one at a time: so many, and so close to each other.
constexpr unsigned kPrompt = 32;
constexpr std::chrono::microseconds kBackToBack{500};
constexpr std::chrono::seconds kLetGo{1};  // after the last of them

// In lockstep: after how long others serve beside a request, and how often that is looked at.
constexpr std::chrono::milliseconds kStuck{2};
// In lockstep: how long a caller takes from an answer to its next request, mostly.
constexpr std::chrono::microseconds kNext{20};

thread_local bool was_adopted = false;
thread_local bool serves_alone = false;

// Waits for a request that comes in a moment without a sleep; whether it came. To the scheduler two threads that sleep
// in turn seem to need one processor, and it may leave them there: then nothing is read ahead beside the caller. Costs
// no more than the idle processor, as long as that is kept from halting too.
bool wait_awake(int connection) {
  pollfd next{connection, POLLIN, 0};
  const auto until = std::chrono::steady_clock::now() + kNext;
  while (std::chrono::steady_clock::now() < until) {
    if (::poll(&next, 1, 0) > 0) return true;
  }
  return false;
}
// So often in vain, one after another, and it sleeps, until the next time that requests come in lockstep.
constexpr unsigned kVain = 16;

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

std::span<const std::byte> RequestLoop::payload_of_write(const char* data, size_t size) {
  const std::byte* address = nullptr;
  std::memcpy(&address, data, sizeof address);
  return {address, size};
}

void RequestLoop::note_adopted_write() { was_adopted = true; }
bool RequestLoop::in_lockstep() { return serves_alone; }

unsigned RequestLoop::suitable() { return std::clamp(4 * std::thread::hardware_concurrency(), 8U, 32U); }

Result<> RequestLoop::run() {
  install_wake_signal();
  io::MutexLock lock(mutex_);
  TRY(add_thread());
  wait_for_end();
  // A signal is lost on a thread that is about to wait, so again until all have ended.
  const auto none_serves = [this]() REQUIRES(mutex_) { return serving_ == 0; };
  while (!changed_.wait_for(mutex_, std::chrono::milliseconds(20), none_serves)) {
    for (Worker& worker : workers_) pthread_kill(worker.thread.native_handle(), kWakeSignal);
  }
  std::list<Worker> ended = std::move(workers_);
  const Result<> outcome = outcome_;
  lock.unlock();
  for (Worker& worker : ended) worker.thread.join();
  return outcome;
}

void RequestLoop::wait_for_end() {
  io::WakeLatency latency;
  bool refused = false;
  std::optional<Clock::time_point> prompt;
  const auto ended = [this]() REQUIRES(mutex_) { return stopped_ || serving_ == 0; };
  while (!ended()) {
    if (lockstep_) {
      changed_.wait_for(mutex_, kStuck, ended);
    } else if (latency.is_held()) {
      changed_.wait_for(mutex_, kLetGo, [&]() REQUIRES(mutex_) { return ended() || lockstep_; });
    } else {
      changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return ended() || lockstep_ || (prompt_ && !refused); });
    }
    const auto now = Clock::now();
    if (std::exchange(prompt_, false) || lockstep_) prompt = now;
    if (lockstep_) look_after_lockstep();
    const bool wanted = prompt && now - *prompt < kLetGo && !refused;
    if (wanted == latency.is_held()) continue;
    mutex_.unlock();
    if (!wanted) latency.let_go();
    if (const auto held = wanted ? latency.hold() : success(); !held) {
      refused = true;
      log::warn("processors are not kept from halting during copies: {}", held.error().message());
    }
    mutex_.lock();
    awake_ = latency.is_held() && std::thread::hardware_concurrency() > 1;
  }
}

// Gives mutex_ up while it logs. Has the threads that wait in vain rest, and ends lockstep when its caller
// has, or a request takes long.
void RequestLoop::look_after_lockstep() {
  const auto quiet = Clock::now() - arrived_;
  if (waiting_ == 0) {
    if (quiet < kStuck) return;
    const uint32_t caller = caller_;
    end_lockstep();
    wake_one();
    mutex_.unlock();
    log::debug("a WRITE of thread {} takes long: others are served beside it", caller);
    mutex_.lock();
  } else if (quiet > kLetGo) {
    end_lockstep();
  } else if (waiting_ > 1) {
    for (Worker& worker : workers_) {
      if (worker.waiting) pthread_kill(worker.thread.native_handle(), kWakeSignal);
    }
  }
}

void RequestLoop::end_lockstep() {
  adopted_writes_ = 0;
  lockstep_ = false;
}

void RequestLoop::note_arrival(const fuse_in_header& request) {
  const auto now = Clock::now();
  const bool alone = waiting_ + resting_ + 1 == serving_;
  const bool close = now - std::exchange(arrived_, now) < kBackToBack;
  one_at_a_time_ = alone && close ? one_at_a_time_ + 1 : 0;
  if (one_at_a_time_ >= kPrompt && !lockstep_ && !std::exchange(prompt_, true)) changed_.notify_all();
  // 0: of the kernel, or of a caller in another pid namespace.
  const bool same = std::exchange(caller_, request.pid) == request.pid && request.pid != 0;
  if (!same || !close || request.opcode != FUSE_WRITE) end_lockstep();
}

void RequestLoop::note_served(uint32_t caller) {
  const bool step = std::exchange(was_adopted, false);
  if (caller != caller_) return;
  if (!step) return end_lockstep();
  ++adopted_writes_;
  if (adopted_writes_ >= kPrompt && !std::exchange(lockstep_, true)) changed_.notify_all();
}

void RequestLoop::stop() {
  fuse_session_exit(session_);
  const io::MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  woken_.notify_all();
}

Result<> RequestLoop::add_thread() {
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

// One more waits for requests.
void RequestLoop::wake_one() {
  if (resting_ > 0) {
    --resting_;
    ++waiting_;
    ++wakes_;
    woken_.notify_one();
  } else if (serving_ < most_ && !stopped_) {
    if (const auto added = add_thread(); !added) log::warn("{}; {} serve", added.error().message(), serving_);
  }
}

void RequestLoop::serve(Worker& self) {
  pthread_setname_np(pthread_self(), "fuse_worker");
  io::AlignedBuffer memory;
  const auto room = memory.get(kReceive);
  Result<> outcome = success();
  if (room.empty()) outcome = Error(ENOMEM, "no memory to receive requests into");
  size_t shift = 0;
  unsigned vain = 0;
  while (outcome && !fuse_session_exited(session_)) {
    const ssize_t received = receive(fuse_session_fd(session_), room, shift);
    if (received > 0) {
      fuse_buf request{};
      request.mem = room.data() + kHeaders;
      request.size = static_cast<size_t>(received);
      if (!serve_one(self, request)) {
        vain = 0;
      } else if (vain < kVain) {
        vain = wait_awake(fuse_session_fd(session_)) ? 0 : vain + 1;
      }
    } else if (received == -EINTR) {
      const io::MutexLock lock(mutex_);
      rest_in_lockstep(self);
    } else {
      if (received < 0) outcome = Error(static_cast<int>(-received), "receiving requests from the kernel");
      break;
    }
  }
  const io::MutexLock lock(mutex_);
  --serving_;
  --waiting_;
  if (!outcome && outcome_) outcome_ = outcome;
  stopped_ = true;
  fuse_session_exit(session_);
  changed_.notify_all();
  woken_.notify_all();
}

// Returns whether the next is worth waiting for awake.
bool RequestLoop::serve_one(Worker& self, fuse_buf& request) {
  const fuse_in_header header = *static_cast<const fuse_in_header*>(request.mem);
  {
    const io::MutexLock lock(mutex_);
    --waiting_;
    self.waiting = false;
    note_arrival(header);
    serves_alone = lockstep_;
    if (waiting_ == 0 && !lockstep_) wake_one();
  }
  fuse_session_process_buf(session_, &request);
  const io::MutexLock lock(mutex_);
  ++waiting_;
  self.waiting = true;
  note_served(header.pid);
  rest_in_lockstep(self);
  return lockstep_ && awake_;
}

// Until it is woken, if another waits for requests.
void RequestLoop::rest_in_lockstep(Worker& self) {
  if (!lockstep_ || waiting_ == 1) return;
  --waiting_;
  ++resting_;
  self.waiting = false;
  woken_.wait(mutex_, [this]() REQUIRES(mutex_) { return wakes_ > 0 || stopped_; });
  self.waiting = true;
  if (wakes_ > 0) {
    --wakes_;  // it counts as waiting already
  } else {
    --resting_;
    ++waiting_;
  }
}

}  // namespace ckptfs::fs

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
#include <new>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "io/aligned_buffer.h"
#include "io/log.h"
#include "io/wake_latency.h"

namespace ckptfs::fs {

namespace {

// A request is received in two parts. Its headers lie aligned, so that they can be read as structs. The payload of a
// WRITE lies at the same place within a page of memory as within a page of the file, so O_DIRECT needs no copy. If any
// other request is longer than the headers of a WRITE, its second part is copied behind its first.
//
//   memory  | shift | payload of a write ...     | headers | a RequestLoop::Write, or the rest of the request
//   at      0                                    kHeaders  kHeaders + kWriteHeaders
struct WriteHeaders {
  fuse_in_header in;
  fuse_write_in write;
};
constexpr size_t kWriteHeaders = sizeof(WriteHeaders);
constexpr size_t kHeaders = RequestLoop::kLargestWrite + RequestLoop::kPage;
static_assert((kHeaders + kWriteHeaders) % alignof(RequestLoop::Write) == 0);
static_assert(std::is_trivially_destructible_v<RequestLoop::Write>);
// Other requests can be as large as a WRITE (FORGET in batches).
constexpr size_t kReceive = kHeaders + kWriteHeaders + RequestLoop::kLargestWrite;

// Where within its page the payload of the next WRITE will probably begin. WRITEs at unaligned offsets mostly come in
// streams whose offsets differ by whole pages. A payload that begins elsewhere is copied.
size_t expected_shift(const WriteHeaders& request) { return request.write.offset % RequestLoop::kPage; }

// Linux 6.18 (protocol 7.45) asks for a copy by FUSE_COPY_FILE_RANGE_64 first, which libfuse 3.17 does not know. If the
// daemon refused it, the kernel would ask by FUSE_COPY_FILE_RANGE. But if it is refused to two callers at the same
// moment, the kernel takes the second refusal for one of FUSE_COPY_FILE_RANGE, and copies by READs and WRITEs as long
// as the mount lasts. So the request is changed into the old one, which has the same fields. The new answer of 64 bits
// is the old one of 32 bits and zeros, as long as the length fits into 32 bits. Earlier kernels did not limit the
// length either.
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

// Receives a request into `memory`. Returns its size, as libfuse counts it; 0 if the connection is gone; or -errno.
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
    new (rest.data()) RequestLoop::Write{payload.first(more)};
    shift = expected_shift(*request);
  }
  return received;
}

// Requests count as coming one at a time if so many come in a row, so close to each other.
constexpr unsigned kPrompt = 32;
constexpr std::chrono::microseconds kBackToBack{500};
constexpr std::chrono::seconds kHoldAwake{1};  // after the last of them

// In lockstep: if a request takes so long, other threads serve beside it. That is checked as often.
constexpr std::chrono::milliseconds kStuck{2};
// In lockstep: how long a caller mostly takes from an answer to its next request.
constexpr std::chrono::microseconds kNext{20};

// Polls, without a sleep, for a request that will come in a moment. Returns whether it came. Two threads that sleep in
// turn seem to the scheduler to need one processor. It may leave both on one, and then nothing is read ahead beside the
// caller. Polling costs no more than an idle processor that is kept from halting.
bool wait_awake(int connection) {
  pollfd next{connection, POLLIN, 0};
  const auto until = std::chrono::steady_clock::now() + kNext;
  while (std::chrono::steady_clock::now() < until) {
    if (::poll(&next, 1, 0) > 0) return true;
  }
  return false;
}
// After so many polls in vain, one after another, a thread sleeps instead, until requests come in lockstep again.
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

// Blocks, in threads that are started within its scope, the signals that the main thread takes.
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

RequestLoop::Write& RequestLoop::write_of(const char* data) {
  return *std::launder(reinterpret_cast<Write*>(const_cast<char*>(data)));
}

unsigned RequestLoop::suitable() { return std::clamp(4 * std::thread::hardware_concurrency(), 8U, 32U); }

Result<> RequestLoop::run() {
  install_wake_signal();
  io::MutexLock lock(mutex_);
  TRY(add_thread());
  wait_for_end();
  // A thread that is just about to wait misses the signal. So the signal is sent again until all threads have ended.
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
      changed_.wait_for(mutex_, kHoldAwake, [&]() REQUIRES(mutex_) { return ended() || lockstep_; });
    } else {
      changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return ended() || lockstep_ || (prompt_ && !refused); });
    }
    const auto now = Clock::now();
    if (std::exchange(prompt_, false) || lockstep_) prompt = now;
    if (lockstep_) check_lockstep();
    const bool wanted = prompt && now - *prompt < kHoldAwake && !refused;
    if (wanted == latency.is_held()) continue;
    mutex_.unlock();
    if (!wanted) latency.release();
    if (const auto held = wanted ? latency.hold() : success(); !held) {
      refused = true;
      log::warn("processors are not kept from halting during copies: {}", held.error().message());
    }
    mutex_.lock();
    awake_ = latency.is_held() && std::thread::hardware_concurrency() > 1;
  }
}

// Gives mutex_ up while it logs. Lets threads that wait in vain rest. Ends the lockstep if its caller has ended, or if
// a request takes long.
void RequestLoop::check_lockstep() {
  const auto quiet = Clock::now() - arrived_;
  if (waiting_ == 0) {
    if (quiet < kStuck) return;
    const uint32_t caller = caller_;
    end_lockstep();
    wake_one();
    mutex_.unlock();
    log::debug("a WRITE of thread {} takes long: others are served beside it", caller);
    mutex_.lock();
  } else if (quiet > kHoldAwake) {
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
  // A pid of 0 is the kernel's, or that of a caller in another pid namespace.
  const bool same = std::exchange(caller_, request.pid) == request.pid && request.pid != 0;
  if (!same || !close || request.opcode != FUSE_WRITE) end_lockstep();
}

void RequestLoop::note_served(uint32_t caller, bool adopted) {
  if (caller != caller_) return;
  if (!adopted) return end_lockstep();
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

// Has one more thread wait for requests.
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

// Returns whether to poll for the next request.
bool RequestLoop::serve_one(Worker& self, fuse_buf& request) {
  const fuse_in_header header = *static_cast<const fuse_in_header*>(request.mem);
  const bool writes = header.opcode == FUSE_WRITE && request.size >= kWriteHeaders;
  Write* const write = writes ? &write_of(static_cast<const char*>(request.mem) + kWriteHeaders) : nullptr;
  {
    const io::MutexLock lock(mutex_);
    --waiting_;
    self.waiting = false;
    note_arrival(header);
    if (write != nullptr) write->in_lockstep = lockstep_;
    if (waiting_ == 0 && !lockstep_) wake_one();
  }
  fuse_session_process_buf(session_, &request);
  const io::MutexLock lock(mutex_);
  ++waiting_;
  self.waiting = true;
  note_served(header.pid, write != nullptr && write->adopted);
  rest_in_lockstep(self);
  return lockstep_ && awake_;
}

// Rests until it is woken, if another thread waits for requests.
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

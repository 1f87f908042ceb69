#include "fs/kernel/request_loop.h"

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
//   memory  | shift | payload of a write ...     | headers | a span of the payload, or the rest of the request
//   at      0                                    kHeaders  kHeaders + kWriteHeaders
struct WriteHeaders {
  fuse_in_header in;
  fuse_write_in write;
};
using Payload = std::span<const std::byte>;
constexpr size_t kWriteHeaders = sizeof(WriteHeaders);
constexpr size_t kHeaders = RequestLoop::kLargestWrite + RequestLoop::kPage;
static_assert((kHeaders + kWriteHeaders) % alignof(Payload) == 0);
static_assert(std::is_trivially_destructible_v<Payload>);
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
    new (rest.data()) Payload(payload.first(more));
    shift = expected_shift(*request);
  }
  return received;
}

// Requests count as coming one at a time if so many come in a row, so close to each other.
constexpr unsigned kPrompt = 32;
constexpr std::chrono::microseconds kBackToBack{500};
constexpr std::chrono::seconds kHoldAwake{1};  // after the last of them

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

std::span<const std::byte> RequestLoop::payload_of(const char* data) {
  return *std::launder(reinterpret_cast<const Payload*>(data));
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
    for (std::thread& thread : threads_) pthread_kill(thread.native_handle(), kWakeSignal);
  }
  std::vector<std::thread> ended = std::move(threads_);
  const Result<> outcome = outcome_;
  lock.unlock();
  for (std::thread& thread : ended) thread.join();
  return outcome;
}

void RequestLoop::wait_for_end() {
  io::WakeLatency latency;
  bool refused = false;
  std::optional<Clock::time_point> prompt;
  const auto ended = [this]() REQUIRES(mutex_) { return stopped_ || serving_ == 0; };
  while (!ended()) {
    if (latency.is_held()) {
      changed_.wait_for(mutex_, kHoldAwake, ended);
    } else {
      changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return ended() || (prompt_ && !refused); });
    }
    const auto now = Clock::now();
    if (std::exchange(prompt_, false)) prompt = now;
    const bool wanted = prompt && now - *prompt < kHoldAwake && !refused;
    if (wanted == latency.is_held()) continue;
    mutex_.unlock();
    if (!wanted) latency.release();
    if (const auto held = wanted ? latency.hold() : success(); !held) {
      refused = true;
      log::warn("processors are not kept from halting during copies: {}", held.error().message());
    }
    mutex_.lock();
  }
}

void RequestLoop::note_arrival() {
  const auto now = Clock::now();
  const bool alone = waiting_ + 1 == serving_;
  const bool close = now - std::exchange(arrived_, now) < kBackToBack;
  one_at_a_time_ = alone && close ? one_at_a_time_ + 1 : 0;
  if (one_at_a_time_ >= kPrompt && !std::exchange(prompt_, true)) changed_.notify_all();
}

void RequestLoop::stop() {
  fuse_session_exit(session_);
  const io::MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Result<> RequestLoop::add_thread() {
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

void RequestLoop::serve() {
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
  const io::MutexLock lock(mutex_);
  --serving_;
  --waiting_;
  if (!outcome && outcome_) outcome_ = outcome;
  stopped_ = true;
  fuse_session_exit(session_);
  changed_.notify_all();
}

void RequestLoop::serve_one(fuse_buf& request) {
  {
    const io::MutexLock lock(mutex_);
    --waiting_;
    note_arrival();
    if (waiting_ == 0 && serving_ < most_ && !stopped_) {
      if (const auto added = add_thread(); !added) log::warn("{}; {} serve", added.error().message(), serving_);
    }
  }
  fuse_session_process_buf(session_, &request);
  const io::MutexLock lock(mutex_);
  ++waiting_;
}

}  // namespace ckptfs::fs

#include "io/transfer_queue.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/fault.h"
#include "io/log.h"
#include "io/mutex.h"
#include "io/retry.h"

namespace ckptfs::io {
namespace {

using Transfer = TransferQueue::Transfer;
using Finished = TransferQueue::Finished;
using Kind = TransferQueue::Kind;

constexpr unsigned kMostThreads = 8;
constexpr int kMostTries = 1000;
constexpr size_t kMostAtOnce = size_t{1} << 30;  // bytes; the kernel counts in 31 bits

// Returns the part of the transfer after its first `done` bytes.
Transfer rest_of(const Transfer& transfer, size_t done) {
  Transfer rest = transfer;
  rest.memory = transfer.memory.subspan(done);
  rest.memory = rest.memory.first(std::min(rest.memory.size(), kMostAtOnce));
  rest.offset = transfer.offset + done;
  return rest;
}

// Returns how the transfer ends with `done` bytes, or nothing if it is not at its end. `outcome` is what the last call
// returned (bytes, or -errno).
std::optional<Result<size_t>> end_of(const Transfer& transfer, size_t done, ssize_t outcome) {
  const bool read = transfer.kind == Kind::read;
  const bool enough = done == transfer.memory.size() || (read && done >= transfer.least);
  // EINVAL is the end of the file, too: a direct read gets it if the file ended within a block and the read goes on
  // there.
  const bool ended = outcome == 0 || (read && outcome == -EINVAL && done > 0);
  if (outcome < 0 && !ended) return Result<size_t>(Error(static_cast<int>(-outcome)));
  if (enough) return Result<size_t>(done);
  if (!ended) return std::nullopt;
  return Result<size_t>(Error(EIO, read ? "the file ends before what is to be read" : "nothing could be written"));
}

// Logs each refusal once per process, because every queue would meet it again.
void log_refusal(std::atomic<bool>& logged, const char* what, int errno_value) {
  if (logged.exchange(true)) return;
  log::warn("{}: {}; going on without, which is slower", what, Error(errno_value).message());
}

class RingQueue : public TransferQueue {
 public:
  // Returns null if the kernel refuses io_uring.
  static std::unique_ptr<TransferQueue> make(unsigned depth, std::span<std::byte> memory) {
    static std::atomic<bool> logged{false};
    auto queue = std::make_unique<RingQueue>(depth);
    int outcome = 0;
    if (const auto fault = fault_point("transfer.io_uring"); !fault) {
      outcome = fault.error().errno_value();
    } else {
      outcome = -io_uring_queue_init(depth, &queue->ring_, 0);
    }
    if (outcome != 0) {
      log_refusal(logged, "io_uring", outcome);
      return nullptr;
    }
    queue->way_.io_uring = true;
    queue->register_memory(memory);
    return queue;
  }

  explicit RingQueue(unsigned depth) : flights_(depth) {
    for (size_t at = 0; at < depth; ++at) idle_.push_back(at);
  }
  ~RingQueue() override {
    if (way_.io_uring) io_uring_queue_exit(&ring_);
  }

  void use_files(std::span<const int> files) override {
    static std::atomic<bool> logged{false};
    if (way_.registered_files) io_uring_unregister_files(&ring_);
    way_.registered_files = false;
    if (files.empty()) return;
    const auto fault = fault_point("transfer.register_files");
    const int outcome = fault ? -io_uring_register_files(&ring_, files.data(), static_cast<unsigned>(files.size()))
                              : fault.error().errno_value();
    way_.registered_files = outcome == 0;
    if (outcome != 0) log_refusal(logged, "io_uring: registering files", outcome);
  }

  Result<> begin(const Transfer& transfer) override {
    if (idle_.empty()) return Error(EBUSY, "the queue is full");
    const size_t at = idle_.back();
    flights_[at] = {transfer, 0};
    TRY(submit(at));
    idle_.pop_back();
    return success();
  }

  Finished finish() override {
    for (;;) {
      io_uring_cqe* entry = nullptr;
      // Transfers in flight use the caller's memory. So it keeps waiting, whatever the kernel returns meanwhile.
      const int outcome = io_uring_wait_cqe(&ring_, &entry);
      if (outcome != 0) {
        if (outcome != -EINTR) wait_again(outcome);
        continue;
      }
      const auto at = static_cast<size_t>(io_uring_cqe_get_data64(entry));
      const ssize_t bytes = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      Flight& flight = flights_[at];
      if (bytes == -EINTR && submit(at)) continue;
      if (bytes > 0) flight.done += static_cast<size_t>(bytes);
      auto end = end_of(flight.transfer, flight.done, bytes);
      if (!end) {
        const auto again = submit(at);
        if (again) continue;
        end = Result<size_t>(again.error());
      }
      idle_.push_back(at);
      return {flight.transfer.tag, std::move(*end)};
    }
  }

  Way way() const override { return way_; }
  bool is_usable() const override { return !broken_; }

 private:
  struct Flight {
    Transfer transfer;
    size_t done = 0;
  };

  // Registers the first slot, and leaves room for the others.
  void register_memory(std::span<std::byte> memory) {
    static std::atomic<bool> logged{false};
    slot_size_ = memory.size() / flights_.size();
    if (slot_size_ == 0) return;
    std::vector<iovec> slots(flights_.size(), iovec{nullptr, 0});
    slots[0] = {memory.data(), slot_size_};
    const auto fault = fault_point("transfer.register_memory");
    const int outcome = fault ? -io_uring_register_buffers(&ring_, slots.data(), static_cast<unsigned>(slots.size()))
                              : fault.error().errno_value();
    way_.registered_memory = outcome == 0;
    memory_ = memory;
    registered_.assign(slots.size(), false);
    registered_[0] = way_.registered_memory;
    if (outcome != 0) log_refusal(logged, "io_uring: registering memory (is `ulimit -l` low?)", outcome);
  }

  // Returns the number of the registered slot that the memory is in, or nothing. Registers a slot at its first use.
  std::optional<size_t> registered_slot(std::span<std::byte> memory) {
    static std::atomic<bool> logged{false};
    if (!way_.registered_memory || memory.data() < memory_.data()) return std::nullopt;
    const auto begin = static_cast<size_t>(memory.data() - memory_.data());
    const size_t slot = begin / slot_size_;
    if (slot >= registered_.size() || begin + memory.size() > (slot + 1) * slot_size_) return std::nullopt;
    if (registered_[slot]) return slot;
    iovec whole{memory_.data() + slot * slot_size_, slot_size_};
    __u64 no_tag = 0;
    const int outcome = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot), &whole, &no_tag, 1);
    registered_[slot] = outcome == 1;
    if (registered_[slot]) return slot;
    way_.registered_memory = false;
    log_refusal(logged, "io_uring: registering more memory (is `ulimit -l` low?)", -outcome);
    return std::nullopt;
  }

  static void wait_again(int outcome) {
    static std::atomic<bool> logged{false};
    log_refusal(logged, "io_uring_wait_cqe", -outcome);
    ::usleep(1000);
  }

  // If the kernel does not take a transfer, the entry stays in the ring, so the ring cannot be used any more.
  Result<> submit(size_t at) {
    if (broken_) return Error(EIO, "io_uring: the ring is out of order");
    const Transfer rest = rest_of(flights_[at].transfer, flights_[at].done);
    const auto fixed = registered_slot(rest.memory);
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return Error(EBUSY, "io_uring: the queue is full");
    const int file = way_.registered_files ? static_cast<int>(rest.file) : rest.fd;
    const auto size = static_cast<unsigned>(rest.memory.size());
    if (rest.kind == Kind::read && fixed) {
      io_uring_prep_read_fixed(entry, file, rest.memory.data(), size, rest.offset, static_cast<int>(*fixed));
    } else if (rest.kind == Kind::read) {
      io_uring_prep_read(entry, file, rest.memory.data(), size, rest.offset);
    } else if (fixed) {
      io_uring_prep_write_fixed(entry, file, rest.memory.data(), size, rest.offset, static_cast<int>(*fixed));
    } else {
      io_uring_prep_write(entry, file, rest.memory.data(), size, rest.offset);
    }
    if (way_.registered_files) entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(entry, at);
    const auto fault = fault_point("transfer.submit");
    int submitted = fault ? io_uring_submit(&ring_) : -fault.error().errno_value();
    for (int tries = 0; (submitted == -EINTR || submitted == -EAGAIN) && tries < kMostTries; ++tries) {
      if (submitted == -EAGAIN) ::usleep(1000);
      submitted = io_uring_submit(&ring_);
    }
    broken_ = submitted < 0;
    if (broken_) return Error(-submitted, "io_uring_submit");
    return success();
  }

  io_uring ring_{};
  Way way_;
  bool broken_ = false;
  std::span<std::byte> memory_;
  size_t slot_size_ = 0;
  std::vector<bool> registered_;  // by slot
  std::vector<Flight> flights_;
  std::vector<size_t> idle_;  // indices into flights_
};

ssize_t transfer_once(const Transfer& transfer) {
  const auto offset = static_cast<off_t>(transfer.offset);
  const ssize_t outcome = retry_interrupted([&] {
    return transfer.kind == Kind::read ? ::pread(transfer.fd, transfer.memory.data(), transfer.memory.size(), offset)
                                       : ::pwrite(transfer.fd, transfer.memory.data(), transfer.memory.size(), offset);
  });
  return outcome < 0 ? -errno : outcome;
}

Finished transfer_all(const Transfer& transfer) {
  size_t done = 0;
  for (;;) {
    const ssize_t outcome = transfer_once(rest_of(transfer, done));
    if (outcome > 0) done += static_cast<size_t>(outcome);
    if (auto end = end_of(transfer, done, outcome)) return {transfer.tag, std::move(*end)};
  }
}

class ThreadQueue : public TransferQueue {
 public:
  explicit ThreadQueue(unsigned depth) : depth_(depth) {}
  ~ThreadQueue() override {
    {
      const MutexLock lock(mutex_);
      ending_ = true;
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void use_files(std::span<const int>) override {}

  Result<> begin(const Transfer& transfer) override {
    if (in_flight_ == depth_) return Error(EBUSY, "the queue is full");
    if (threads_.size() <= in_flight_ && threads_.size() < kMostThreads) TRY(add_thread());
    {
      const MutexLock lock(mutex_);
      waiting_.push_back(transfer);
    }
    begun_.notify_one();
    ++in_flight_;
    return success();
  }

  Finished finish() override {
    MutexLock lock(mutex_);
    ended_.wait(mutex_, [this]() REQUIRES(mutex_) { return !finished_.empty(); });
    Finished first = std::move(finished_.front());
    finished_.pop_front();
    --in_flight_;
    return first;
  }

  Way way() const override { return {}; }
  bool is_usable() const override { return true; }

 private:
  // Makes another thread. A failure matters only if there is none yet.
  Result<> add_thread() {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& e) {
      if (threads_.empty()) return Error(e.code().value(), std::string("a thread for transfers: ") + e.what());
    }
    return success();
  }

  void work() {
    MutexLock lock(mutex_);
    for (;;) {
      begun_.wait(mutex_, [this]() REQUIRES(mutex_) { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Transfer transfer = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      Finished finished = transfer_all(transfer);
      lock.lock();
      finished_.push_back(std::move(finished));
      ended_.notify_one();
    }
  }

  const unsigned depth_;
  size_t in_flight_ = 0;              // used by the owner's thread only
  std::vector<std::thread> threads_;  // used by the owner's thread only
  Mutex mutex_;
  CondVar begun_;
  CondVar ended_;
  std::deque<Transfer> waiting_ GUARDED_BY(mutex_);
  std::deque<Finished> finished_ GUARDED_BY(mutex_);
  bool ending_ GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<TransferQueue> TransferQueue::make(unsigned depth, std::span<std::byte> memory) {
  if (auto ring = RingQueue::make(depth, memory)) return ring;
  return std::make_unique<ThreadQueue>(depth);
}

}  // namespace ckptfs::io

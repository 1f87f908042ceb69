// The ring that every load and save goes through: one block of pinned host memory, cut into slots, which belong to
// *lanes*. A lane is a transfer queue (io/transfer_queue.h), a stream and the slots between them, driven by one thread;
// several lanes use several processors and several queues of the disk. All that a job takes of host memory, beside its
// plan, is the ring.
//
// A load is a job that read_plan.h has made of what is wanted: aligned reads. A save is a job that writes one file from
// its beginning to its end (file_save.h).
//
// A lane returns with nothing in flight, whatever failed: the memory is the caller's. What the processor copies itself
// waits for the caller's stream first; what the device copies is ordered behind it.
//
// Thread safety: run() from any thread, one job after the other; the rest is constant once made.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "io/transfer_queue.h"

namespace ckptfs::gpu {

// A part of the ring, and the event that tells when the device is through with it.
struct Slot {
  std::span<std::byte> memory;
  OwnedEvent copied;
};

struct Lane {
  Device& device;
  OwnedStream stream;
  std::unique_ptr<io::TransferQueue> queue;  // takes as many transfers as there are slots
  std::vector<Slot> slots;
};

class Staging {
 public:
  struct Options {
    size_t bytes = size_t{256} << 20;
    size_t slot = size_t{8} << 20;  // a multiple of kAlignment
    unsigned lanes = 0;             // 0: one for every two processors, between 2 and 8
  };
  // Slots, and what is transferred to and from them, begin at multiples of this in memory and in files.
  static constexpr size_t kAlignment = 4096;

  // EINVAL: options that make no ring. ENOMEM: so much memory cannot be had, or cannot be pinned.
  static Result<std::unique_ptr<Staging>> make(std::shared_ptr<Device> device, Options options);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  Device& device() const { return *device_; }
  size_t slot_size() const { return slot_size_; }
  io::TransferQueue::Way way() const { return lanes_.front().queue->way(); }

  // Calls `work` for each lane, on a thread of its own, while no other job has them; `files` are those of its
  // transfers. The first error of a lane. `work` returns with nothing in flight, whatever failed.
  Result<> run(std::span<const int> files, const std::function<Result<>(Lane&)>& work);

 private:
  Staging(std::shared_ptr<Device> device, size_t slot_size) : device_(std::move(device)), slot_size_(slot_size) {}
  Result<> map(size_t bytes);
  Result<> add_lane(std::span<std::byte> memory);

  const std::shared_ptr<Device> device_;
  const size_t slot_size_;
  std::span<std::byte> memory_;
  bool pinned_ = false;
  std::deque<Lane> lanes_;
  std::mutex mutex_;  // held by the job that has the lanes
};

}  // namespace ckptfs::gpu

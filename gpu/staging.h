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
// Thread safety: any thread may call run(), which runs one job at a time. Everything else is constant after
// construction.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "io/mutex.h"
#include "io/transfer_queue.h"

namespace ckptfs::gpu {

// A part of the ring, and the event that is done when the device has finished with it.
struct Slot {
  std::span<std::byte> memory;
  OwnedEvent copied;
};

struct Lane {
  Device& device;
  OwnedStream stream;
  std::unique_ptr<io::TransferQueue> queue;  // takes as many transfers as the lane has slots
  std::vector<Slot> slots;
};

class Staging {
 public:
  struct Options {
    size_t bytes = size_t{256} << 20;
    size_t slot = 0;     // a multiple of kAlignment; 0: Device::usual_slot()
    unsigned lanes = 0;  // 0: one for every two processors, between 2 and 8
  };
  // Slots, and the file ranges that are transferred, are aligned to this, in memory and in the file.
  static constexpr size_t kAlignment = 4096;

  // Fails with EINVAL if the options make no ring, and with ENOMEM if the memory cannot be allocated or pinned.
  static Result<std::unique_ptr<Staging>> make(std::shared_ptr<Device> device, Options options);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  Device& device() const { return *device_; }
  size_t slot_size() const { return slot_size_; }
  size_t lanes() const { return lanes_.size(); }
  io::TransferQueue::Way way() const { return lanes_.front().queue->way(); }

  // Runs `work` for each lane, each on its own thread, while no other job uses the lanes. `files` are the files of its
  // transfers. Returns the first error of a lane. `work` must return with nothing in flight, even after an error.
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
  io::Mutex mutex_;  // held by the running job
};

}  // namespace ckptfs::gpu

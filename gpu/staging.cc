#include "gpu/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "io/log.h"
#include "io/parallel.h"

namespace ckptfs::gpu {
namespace {

constexpr unsigned kFewestLanes = 2;
constexpr unsigned kMostLanes = 8;
constexpr size_t kLeastSlots = 2;  // per lane: one is filled while the other is emptied

// The slots must be adjacent in memory.
std::unique_ptr<io::TransferQueue> make_queue(const std::vector<Slot>& slots) {
  const std::span<std::byte> first = slots.front().memory;
  return io::TransferQueue::make(static_cast<unsigned>(slots.size()), {first.data(), first.size() * slots.size()});
}

unsigned usual_lanes() { return std::clamp(std::thread::hardware_concurrency() / 2, kFewestLanes, kMostLanes); }

}  // namespace

Result<std::unique_ptr<Staging>> Staging::make(std::shared_ptr<Device> device, Options options) {
  if (options.slot == 0) options.slot = device->usual_slot();
  const size_t slots = options.bytes / options.slot;
  if (options.slot % kAlignment != 0 || slots < kLeastSlots) {
    return Error(EINVAL, "a ring of " + std::to_string(options.bytes) + " bytes in slots of " +
                             std::to_string(options.slot) + ": a slot is a multiple of 4096 bytes, and there are 2");
  }
  const unsigned wanted = options.lanes != 0 ? options.lanes : usual_lanes();
  const size_t lanes = std::min<size_t>(wanted, slots / kLeastSlots);
  std::unique_ptr<Staging> staging(new Staging(std::move(device), options.slot));
  TRY_ASSIGN(const Attached attached, Attached::make(*staging->device_));
  TRY(staging->map(slots * options.slot));
  size_t begin = 0;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const size_t end = slots * (lane + 1) / lanes;
    TRY(staging->add_lane(staging->memory_.subspan(begin * options.slot, (end - begin) * options.slot)));
    begin = end;
  }
  return staging;
}

Staging::~Staging() {
  lanes_.clear();
  if (pinned_) device_->unpin(memory_);
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

// The memory is on huge pages, which are pinned faster. A device makes all pages when it pins them. Without a GPU the
// pages of a slot come into being when it is first used, so a small load does not wait for the whole ring. A forked
// child does not inherit the memory: the copy-on-write after a fork would give this process another page than the one
// the device uses.
Result<> Staging::map(size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return last_error("a ring of " + std::to_string(bytes) + " bytes");
  memory_ = {static_cast<std::byte*>(memory), bytes};
  if (::madvise(memory, bytes, MADV_HUGEPAGE) != 0) log::info("{}", last_error("staging: huge pages").message());
  if (::madvise(memory, bytes, MADV_DONTFORK) != 0) return last_error("staging: MADV_DONTFORK");
  TRY(device_->pin(memory_));
  pinned_ = true;
  return success();
}

Result<> Staging::add_lane(std::span<std::byte> memory) {
  TRY_ASSIGN(OwnedStream stream, OwnedStream::make(*device_));
  std::vector<Slot> slots;
  for (size_t at = 0; at < memory.size(); at += slot_size_) {
    TRY_ASSIGN(OwnedEvent copied, OwnedEvent::make(*device_));
    slots.push_back({memory.subspan(at, slot_size_), std::move(copied)});
  }
  auto queue = make_queue(slots);
  lanes_.push_back({*device_, std::move(stream), std::move(queue), std::move(slots)});
  return success();
}

Result<> Staging::run(std::span<const int> files, const std::function<Result<>(Lane&)>& work) {
  const io::MutexLock one_at_a_time(mutex_);
  for (Lane& lane : lanes_) lane.queue->use_files(files);
  auto done = io::for_each_parallel(lanes_.size(), static_cast<unsigned>(lanes_.size()), [&](size_t at) -> Result<> {
    TRY_ASSIGN(const Attached attached, Attached::make(*device_));
    return work(lanes_[at]);
  });
  for (Lane& lane : lanes_) {
    lane.queue->use_files({});
    if (!lane.queue->is_usable()) lane.queue = make_queue(lane.slots);
  }
  return done;
}

}  // namespace ckptfs::gpu

// A device on the CPU. Where there is no GPU it carries loads and saves of host memory; in tests its *device* memory is
// as far away as a GPU's: its addresses can be touched by nobody (PROT_NONE), only copied to and from, and copies end
// late, on a thread of the stream, so that a wait that is missing shows in the data.
//
// Staging memory that was not pinned, and ranges that are not all of one allocation, are refused (EINVAL), where CUDA
// would be slow, or worse.
//
// Thread safety: all of it. Locks: mutex_, and one in each stream and event (leaves; none is held with another).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/device.h"
#include "io/fd.h"

namespace ckptfs::gpu {

class Twin : public Device {
 public:
  // `lateness`: how late a copy ends, at most; each has its own share of it.
  explicit Twin(std::chrono::microseconds lateness = {});
  ~Twin() override;

  const std::string& name() const override { return name_; }
  Result<int> attach() override { return 0; }
  void give_back(int) override {}
  Result<MemoryKind> kind_of(const std::byte* address) override;
  Result<> pin(std::span<std::byte> memory) override;
  void unpin(std::span<std::byte> memory) override;
  Result<Stream> make_stream() override;
  void destroy_stream(Stream stream) override;
  Result<> copy_in(std::byte* device_memory, std::span<const std::byte> staging, Stream stream) override;
  Result<> copy_out(std::span<std::byte> staging, const std::byte* device_memory, Stream stream) override;
  Result<> drain(Stream stream) override;
  Result<Event> make_event() override;
  void destroy_event(Event event) override;
  Result<> record(Event event, Stream stream) override;
  Result<bool> is_done(Event event) override;
  Result<> wait(Event event) override;
  Result<> order(Stream stream, Event event) override;
  Result<std::byte*> allocate(size_t size) override;
  Result<> release(std::byte* address) override;

 private:
  class Worker;      // a stream
  struct Milestone;  // an event
  // Of a memory file that is mapped twice: where its addresses are, and where its bytes can be had.
  struct Allocation {
    size_t size = 0;
    std::byte* bytes = nullptr;
  };

  Worker& worker(Stream stream);
  // Where the bytes of that device memory can be had.
  Result<std::byte*> bytes_at(const std::byte* device_memory, size_t size);
  Result<> check_pinned(std::span<const std::byte> memory);

  const std::string name_ = "twin";
  const std::chrono::microseconds lateness_;
  std::unique_ptr<Worker> default_stream_;
  std::mutex mutex_;
  std::map<const std::byte*, Allocation> allocations_;  // guarded by mutex_; by their addresses
  std::map<const std::byte*, size_t> pinned_;           // guarded by mutex_; lengths
};

}  // namespace ckptfs::gpu

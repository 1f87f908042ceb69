// A device on the CPU. Without a GPU it serves loads and saves of host memory. In tests its *device* memory behaves
// like a GPU's: its addresses cannot be accessed (PROT_NONE), only copied to and from, and copies end late, on the
// stream's thread. So a missing wait shows as wrong data.
//
// It refuses (EINVAL) staging memory that is not pinned, and ranges that exceed their allocation. CUDA would be slow
// there, or worse.
//
// Thread-safe. Locks: mutex_, and one in each stream and event. None is held together with another.
#pragma once

#include <chrono>
#include <map>
#include <memory>

#include "gpu/device.h"
#include "io/fd.h"
#include "io/mutex.h"

namespace ckptfs::gpu {

class Twin : public Device {
 public:
  // `lateness` is the maximal delay of a copy; each copy gets a random part of it.
  explicit Twin(std::chrono::microseconds lateness = {});
  ~Twin() override;

  const std::string& name() const override { return name_; }
  // The processor copies what a slot holds out of its cache. A load on 2 cores is a sixth shorter than with 8 MiB.
  size_t usual_slot() const override { return size_t{1} << 20; }
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
  // A memory file that is mapped twice: once for its addresses, and once for access to its bytes.
  struct Allocation {
    size_t size = 0;
    std::byte* bytes = nullptr;
  };

  Worker& worker(Stream stream);
  // Returns where the bytes of that device memory can be accessed.
  Result<std::byte*> bytes_at(const std::byte* device_memory, size_t size);
  Result<> check_pinned(std::span<const std::byte> memory);

  const std::string name_ = "twin";
  const std::chrono::microseconds lateness_;
  std::unique_ptr<Worker> default_stream_;
  io::Mutex mutex_;
  std::map<const std::byte*, Allocation> allocations_ GUARDED_BY(mutex_);  // by their addresses
  std::map<const std::byte*, size_t> pinned_ GUARDED_BY(mutex_);           // lengths
};

}  // namespace ckptfs::gpu

// Device memory, and copies between it and staging memory: the one table of functions that load and save go through.
// CUDA implements it (device_cuda.cc), and so does a twin on the CPU (twin.h), which stands in for it in tests and
// where there is no GPU.
//
// An address of device memory is never dereferenced here, only handed on. Copies are asynchronous and in order within
// their stream; an event tells when what was put on a stream before it has ended.
//
// Thread safety: all of it; a thread has an Attached before anything else. Handles are the caller's to destroy, before
// the device.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "io/result.h"

namespace ckptfs::gpu {

// As the device names them (cudaStream_t, cudaEvent_t). The null stream is the device's default one.
using Stream = void*;
using Event = void*;

enum class MemoryKind { host, device };

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;  // "cuda:0", "twin"
  // The device is the calling thread's from now on; what it had before.
  virtual Result<int> attach() = 0;
  virtual void give_back(int before) = 0;
  // Where an address leads. Plain memory that the device does not know is host.
  virtual Result<MemoryKind> kind_of(const std::byte* address) = 0;

  // Staging memory: has the pages stay where they are, so that copies run at the full rate and asynchronously.
  virtual Result<> pin(std::span<std::byte> memory) = 0;
  virtual void unpin(std::span<std::byte> memory) = 0;

  virtual Result<Stream> make_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  // `staging`: pinned, and left alone until an event behind the copy is done.
  virtual Result<> copy_in(std::byte* device_memory, std::span<const std::byte> staging, Stream stream) = 0;
  virtual Result<> copy_out(std::span<std::byte> staging, const std::byte* device_memory, Stream stream) = 0;
  // Waits for all that is on the stream.
  virtual Result<> drain(Stream stream) = 0;

  virtual Result<Event> make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  // The event is done when all that is on the stream now has ended. An event never recorded is done.
  virtual Result<> record(Event event, Stream stream) = 0;
  virtual Result<bool> is_done(Event event) = 0;
  virtual Result<> wait(Event event) = 0;
  // What is put on the stream from now on begins when the event, as recorded last, is done.
  virtual Result<> order(Stream stream, Event event) = 0;

  // Device memory for whoever has no framework that gives it out.
  virtual Result<std::byte*> allocate(size_t size) = 0;
  virtual Result<> release(std::byte* address) = 0;
};

// The calling thread has the device as long as this lives, and then the one that it had. The device outlives it.
class Attached {
 public:
  static Result<Attached> make(Device& device) {
    TRY_ASSIGN(const int before, device.attach());
    return Attached(device, before);
  }
  Attached(Attached&& other) noexcept : device_(std::exchange(other.device_, nullptr)), before_(other.before_) {}
  Attached& operator=(Attached&&) = delete;
  ~Attached() {
    if (device_ != nullptr) device_->give_back(before_);
  }

 private:
  Attached(Device& device, int before) : device_(&device), before_(before) {}
  Device* device_;
  int before_;
};

// A stream or an event with an owner. The device outlives it.
template <Result<void*> (Device::*kMake)(), void (Device::*kDestroy)(void*)>
class Owned {
 public:
  static Result<Owned> make(Device& device) {
    TRY_ASSIGN(void* const handle, (device.*kMake)());
    return Owned(device, handle);
  }
  Owned(Owned&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (device_ != nullptr) (device_->*kDestroy)(handle_);
  }
  void* get() const { return handle_; }

 private:
  Owned(Device& device, void* handle) : device_(&device), handle_(handle) {}
  Device* device_;
  void* handle_;
};
using OwnedStream = Owned<&Device::make_stream, &Device::destroy_stream>;
using OwnedEvent = Owned<&Device::make_event, &Device::destroy_event>;

}  // namespace ckptfs::gpu

// The interface to device memory: every load and save copies between device memory and staging memory through it. CUDA
// implements it (device_cuda.cc). A twin on the CPU (twin.h) implements it for tests and for machines without a GPU.
//
// This code never dereferences an address of device memory. Copies are asynchronous, and in order within their stream.
// An event is done when everything that was put on its stream before it has ended.
//
// Thread safety: all functions, but a thread must first make an Attached. The caller must destroy the handles before
// the device.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "io/result.h"

namespace ckptfs::gpu {

// The device's own types (cudaStream_t, cudaEvent_t). The null stream is the device's default stream.
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
  // The length of a staging slot that suits it, in bytes.
  virtual size_t usual_slot() const = 0;
  // Makes the device the calling thread's current one. Returns the previous one, for give_back().
  virtual Result<int> attach() = 0;
  virtual void give_back(int before) = 0;
  // Tells which memory an address is in. Memory that the device does not know is host memory.
  virtual Result<MemoryKind> kind_of(const std::byte* address) = 0;

  // Pins the pages of staging memory, so that copies run at full rate and asynchronously.
  virtual Result<> pin(std::span<std::byte> memory) = 0;
  virtual void unpin(std::span<std::byte> memory) = 0;

  virtual Result<Stream> make_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  // `staging` must be pinned, and must not be touched until an event recorded after the copy is done.
  virtual Result<> copy_in(std::byte* device_memory, std::span<const std::byte> staging, Stream stream) = 0;
  virtual Result<> copy_out(std::span<std::byte> staging, const std::byte* device_memory, Stream stream) = 0;
  // Waits for everything on the stream.
  virtual Result<> drain(Stream stream) = 0;

  virtual Result<Event> make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  // The event is done when everything that is on the stream now has ended. An event that was never recorded is done.
  virtual Result<> record(Event event, Stream stream) = 0;
  virtual Result<bool> is_done(Event event) = 0;
  virtual Result<> wait(Event event) = 0;
  // Work that is put on the stream from now on starts after the event, as last recorded, is done.
  virtual Result<> order(Stream stream, Event event) = 0;

  // Device memory, for programs without a framework that allocates it.
  virtual Result<std::byte*> allocate(size_t size) = 0;
  virtual Result<> release(std::byte* address) = 0;
};

// Makes the device the calling thread's current one, and restores the previous one at the end of the scope. The device
// must outlive it.
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

// A stream or an event that is destroyed at the end of the scope. The device must outlive it.
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

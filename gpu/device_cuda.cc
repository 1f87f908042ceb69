// CUDA's runtime behind the interface of device.h. No code here runs on the device, so any C++ compiler builds it. The
// runtime is linked statically, and looks for the driver when the first device is opened.
#include "gpu/device_cuda.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <string>

#include "io/log.h"

namespace ckptfs::gpu {
namespace {

int errno_of(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return ENOMEM;
    case cudaErrorInvalidValue:
      return EINVAL;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return ENODEV;
    default:
      return EIO;
  }
}

// Also clears the runtime's last error, which the next caller would get again.
Result<> check(cudaError_t code, const std::string& what) {
  if (code == cudaSuccess) return success();
  (void)cudaGetLastError();
  return Error(errno_of(code), what + ": " + cudaGetErrorString(code));
}

// For functions that cannot return an error.
void check_and_log(cudaError_t code, const char* what) {
  if (const auto done = check(code, what); !done) log::warn("{}", done.error().message());
}

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t native_event(Event event) { return static_cast<cudaEvent_t>(event); }

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal), name_("cuda:" + std::to_string(ordinal)) {}

  const std::string& name() const override { return name_; }
  size_t usual_slot() const override { return size_t{8} << 20; }  // the link is at its full rate
  Result<int> attach() override {
    int before = ordinal_;
    TRY(check(cudaGetDevice(&before), name_ + ": cudaGetDevice"));
    if (before != ordinal_) TRY(check(cudaSetDevice(ordinal_), name_ + ": cudaSetDevice"));
    return before;
  }
  void give_back(int before) override {
    if (before != ordinal_) check_and_log(cudaSetDevice(before), "cudaSetDevice");
  }

  Result<MemoryKind> kind_of(const std::byte* address) override {
    cudaPointerAttributes attributes{};
    TRY(check(cudaPointerGetAttributes(&attributes, address), name_ + ": cudaPointerGetAttributes"));
    const bool managed = attributes.type == cudaMemoryTypeManaged;
    if (attributes.type != cudaMemoryTypeDevice && !managed) return MemoryKind::host;
    if (managed) return MemoryKind::device;
    if (attributes.device == ordinal_) return MemoryKind::device;
    return Error(EINVAL, "the memory is of cuda:" + std::to_string(attributes.device) + ", and not of " + name_);
  }

  Result<> pin(std::span<std::byte> memory) override {
    return check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable),
                 name_ + ": cudaHostRegister");
  }
  void unpin(std::span<std::byte> memory) override {
    check_and_log(cudaHostUnregister(memory.data()), "cudaHostUnregister");
  }

  Result<Stream> make_stream() override {
    cudaStream_t stream = nullptr;
    TRY(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), name_ + ": cudaStreamCreate"));
    return static_cast<Stream>(stream);
  }
  void destroy_stream(Stream stream) override { check_and_log(cudaStreamDestroy(native(stream)), "cudaStreamDestroy"); }

  Result<> copy_in(std::byte* device_memory, std::span<const std::byte> staging, Stream stream) override {
    return copy(device_memory, staging.data(), staging.size(), cudaMemcpyHostToDevice, stream);
  }
  Result<> copy_out(std::span<std::byte> staging, const std::byte* device_memory, Stream stream) override {
    return copy(staging.data(), device_memory, staging.size(), cudaMemcpyDeviceToHost, stream);
  }

  Result<> drain(Stream stream) override {
    return check(cudaStreamSynchronize(native(stream)), name_ + ": cudaStreamSynchronize");
  }

  Result<Event> make_event() override {
    cudaEvent_t event = nullptr;
    TRY(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), name_ + ": cudaEventCreate"));
    return static_cast<Event>(event);
  }
  void destroy_event(Event event) override { check_and_log(cudaEventDestroy(native_event(event)), "cudaEventDestroy"); }
  Result<> record(Event event, Stream stream) override {
    return check(cudaEventRecord(native_event(event), native(stream)), name_ + ": cudaEventRecord");
  }
  Result<bool> is_done(Event event) override {
    const cudaError_t code = cudaEventQuery(native_event(event));
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    TRY(check(code, name_ + ": cudaEventQuery"));
    return true;
  }
  Result<> wait(Event event) override {
    return check(cudaEventSynchronize(native_event(event)), name_ + ": cudaEventSynchronize");
  }
  Result<> order(Stream stream, Event event) override {
    return check(cudaStreamWaitEvent(native(stream), native_event(event), 0), name_ + ": cudaStreamWaitEvent");
  }

  Result<std::byte*> allocate(size_t size) override {
    TRY_ASSIGN(const Attached attached, Attached::make(*this));
    void* memory = nullptr;
    TRY(check(cudaMalloc(&memory, size), name_ + ": " + std::to_string(size) + " bytes"));
    return static_cast<std::byte*>(memory);
  }
  Result<> release(std::byte* address) override { return check(cudaFree(address), name_ + ": cudaFree"); }

 private:
  Result<> copy(void* to, const void* from, size_t size, cudaMemcpyKind kind, Stream stream) const {
    return check(cudaMemcpyAsync(to, from, size, kind, native(stream)), name_ + ": cudaMemcpyAsync");
  }

  const int ordinal_;
  const std::string name_;
};

}  // namespace

Result<std::shared_ptr<Device>> open_cuda_device(int ordinal) {
  int count = 0;  // unchanged if there is no driver
  TRY(check(cudaGetDeviceCount(&count), "CUDA"));
  if (ordinal < 0 || ordinal >= count) {
    return Error(ENODEV, "there is no cuda:" + std::to_string(ordinal) + ": this machine has " + std::to_string(count));
  }
  return std::shared_ptr<Device>(std::make_shared<CudaDevice>(ordinal));
}

}  // namespace ckptfs::gpu

// Replaces device_cuda.cc in builds without the CUDA toolkit.
#include "gpu/device_cuda.h"

namespace ckptfs::gpu {

Result<std::shared_ptr<Device>> open_cuda_device(int) {
  return Error(ENODEV, "this ckptfs was built without the CUDA toolkit: install it, and build again");
}

}  // namespace ckptfs::gpu

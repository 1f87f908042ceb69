// The CUDA devices of this machine.
#pragma once

#include <memory>

#include "gpu/device.h"

namespace ckptfs::gpu {

// Fails with ENODEV, in words, if there is no driver, no such device, or no CUDA in this build.
Result<std::shared_ptr<Device>> open_cuda_device(int ordinal);

}  // namespace ckptfs::gpu

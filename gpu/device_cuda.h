// The CUDA devices of this machine.
#pragma once

#include <memory>

#include "gpu/device.h"

namespace ckptfs::gpu {

// ENODEV, in words: there is no driver, or no such device, or this was built without CUDA.
Result<std::shared_ptr<Device>> open_cuda_device(int ordinal);

}  // namespace ckptfs::gpu

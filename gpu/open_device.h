// The devices that there are, by name. Stateless; any thread.
#pragma once

#include <memory>
#include <string>

#include "gpu/device.h"
#include "io/result.h"

namespace ckptfs::gpu {

// "cuda:N": ENODEV, in words, where there is no such device, or this build knows none. "twin": the CPU's; always there,
// and what host memory needs. "": cuda:0 where there is one, else the twin.
Result<std::shared_ptr<Device>> open_device(const std::string& name);

}  // namespace ckptfs::gpu

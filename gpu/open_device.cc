#include "gpu/open_device.h"

#include <charconv>
#include <string_view>

#include "gpu/device_cuda.h"
#include "gpu/twin.h"
#include "io/log.h"

namespace ckptfs::gpu {

Result<std::shared_ptr<Device>> open_device(const std::string& name) {
  constexpr std::string_view kCuda = "cuda:";
  if (name == "twin") return std::shared_ptr<Device>(std::make_shared<Twin>());
  if (name.empty()) {
    auto cuda = open_cuda_device(0);
    if (cuda || cuda.error().errno_value() != ENODEV) return cuda;
    log::info("no GPU is used: {}", cuda.error().message());
    return std::shared_ptr<Device>(std::make_shared<Twin>());
  }
  int ordinal = 0;
  const char* const end = name.data() + name.size();
  if (name.starts_with(kCuda)) {
    const auto [stop, error] = std::from_chars(name.data() + kCuda.size(), end, ordinal);
    if (error == std::errc() && stop == end) return open_cuda_device(ordinal);
  }
  return Error(EINVAL, name + ": no device; there are \"cuda:0\" and so on, and \"twin\"");
}

}  // namespace ckptfs::gpu

#include "gpu/open_device.h"

#include <string_view>

#include "gpu/device_cuda.h"
#include "gpu/twin.h"
#include "io/log.h"
#include "io/text.h"

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
  const auto ordinal = name.starts_with(kCuda) ? io::parse_number<int>(name.substr(kCuda.size())) : std::nullopt;
  if (ordinal) return open_cuda_device(*ordinal);
  return Error(EINVAL, name + ": no device; there are \"cuda:0\" and so on, and \"twin\"");
}

}  // namespace ckptfs::gpu

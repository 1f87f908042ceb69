#include "io/wake_latency.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace ckptfs::io {
namespace {

constexpr const char* kDevice = "/dev/cpu_dma_latency";
constexpr int32_t kShallow = 2;  // us; allows C1 on a real processor
constexpr int32_t kNone = 0;     // the only value with which a guest's driver (haltpoll) does not halt

}  // namespace

Result<> WakeLatency::hold() {
  const auto driver = read_file("/sys/devices/system/cpu/cpuidle/current_driver");
  const int32_t wanted = driver && driver.value().starts_with("haltpoll") ? kNone : kShallow;
  TRY_ASSIGN(Fd device, open_at(AT_FDCWD, kDevice, O_WRONLY));
  if (::write(device.get(), &wanted, sizeof wanted) != sizeof wanted) return last_error(kDevice);
  held_ = std::move(device);
  return success();
}

}  // namespace ckptfs::io

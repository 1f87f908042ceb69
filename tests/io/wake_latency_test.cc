#include "io/wake_latency.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace ckptfs::io {
namespace {

constexpr const char* kDevice = "/dev/cpu_dma_latency";

// Returns the limit in microseconds that all holders, including other processes, have requested.
int32_t asked_for() {
  const auto device = open_at(AT_FDCWD, kDevice, O_RDONLY);
  int32_t value = -1;
  EXPECT_TRUE(device) << device.error().message();
  EXPECT_EQ(::read(device.value().get(), &value, sizeof value), ssize_t{sizeof value});
  return value;
}

// Returns true if this process holds it.
bool is_held_here() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor that lists the folder is gone
    if (std::filesystem::read_symlink(entry.path(), gone) == kDevice) return true;
  }
  return false;
}

TEST(WakeLatencyTest, IsAskedForWhileItIsHeld) {
  WakeLatency latency;
  const auto held = latency.hold();
  EXPECT_EQ(latency.is_held(), static_cast<bool>(held));
  if (!held) {  // a container without the device
    EXPECT_TRUE(held.error().errno_value() == ENOENT || held.error().errno_value() == EACCES);
    return;
  }
  EXPECT_LE(asked_for(), 2);
  EXPECT_TRUE(is_held_here());
  latency.release();
  EXPECT_FALSE(latency.is_held());
  EXPECT_FALSE(is_held_here());
}

}  // namespace
}  // namespace ckptfs::io

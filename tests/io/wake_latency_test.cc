#include "io/wake_latency.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace ckptfs::io {
namespace {

// What all who hold it ask for, in microseconds.
int32_t asked_for() {
  const auto device = open_at(AT_FDCWD, "/dev/cpu_dma_latency", O_RDONLY);
  int32_t value = -1;
  EXPECT_TRUE(device) << device.error().message();
  EXPECT_EQ(::read(device.value().get(), &value, sizeof value), ssize_t{sizeof value});
  return value;
}

TEST(WakeLatencyTest, IsAskedForWhileItIsHeld) {
  WakeLatency latency;
  const auto held = latency.hold();
  EXPECT_EQ(latency.is_held(), static_cast<bool>(held));
  if (!held) {  // in a container without the device
    EXPECT_TRUE(held.error().errno_value() == ENOENT || held.error().errno_value() == EACCES);
    return;
  }
  EXPECT_LE(asked_for(), 2);
  latency.let_go();
  EXPECT_FALSE(latency.is_held());
  EXPECT_GT(asked_for(), 2) << "somebody else holds it, or it was not let go";
}

}  // namespace
}  // namespace ckptfs::io

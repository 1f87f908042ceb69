// Identifies the current boot, and tells how long ago it was.
#pragma once

#include <chrono>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

// The kernel's boot id, which differs after each boot.
Result<std::string> boot_id();
// The time since the boot, including the time in suspend. Nobody can set this clock.
std::chrono::nanoseconds since_boot();

}  // namespace ckptfs::io

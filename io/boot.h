// Which run of the kernel this is, and how long it has lasted.
#pragma once

#include <chrono>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

// Another one after each boot.
Result<std::string> boot_id();
// Since the boot, with the time that the machine was suspended. Nobody can set it.
std::chrono::nanoseconds since_boot();

}  // namespace ckptfs::io

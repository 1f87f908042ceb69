// Calls what may wait for a daemon that is stopped or hangs: anything that touches a mount, as the kernel sets no limit
// to that wait. The call runs in a child process, which is given up after some seconds. A thread would not do: one that
// waits for a hung FUSE daemon cannot be ended.
#pragma once

#include <functional>
#include <string>

#include "io/result.h"

namespace ckptfs::fs::cli {

// Returns what `work` returns, or ETIMEDOUT. `work` must leave nothing in this process but its result.
Result<std::string> call_with_limit(const std::function<Result<std::string>()>& work);

}  // namespace ckptfs::fs::cli

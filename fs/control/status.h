// The JSON that `ckptfs status --json` shows of a mount. Any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "fs/ops/filesystem.h"

namespace ckptfs::fs {

nlohmann::json status_of(const Filesystem& fs);

}  // namespace ckptfs::fs

// Where a daemon's log goes.
#pragma once

#include <string>

#include "io/result.h"

namespace ckptfs::fs::cli {

inline constexpr const char* kLogLevels = "trace, debug, info, warning, error, critical, off";

bool is_log_level(const std::string& level);
// To `file`; without one to stderr in the foreground, else to syslog. Replaces spdlog's default logger.
Result<> open_log(const std::string& file, bool foreground, const std::string& level);

}  // namespace ckptfs::fs::cli

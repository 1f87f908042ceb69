// Opens a daemon's log.
#pragma once

#include <string>

#include "io/result.h"

namespace ckptfs::fs::cli {

inline constexpr const char* kLogLevels = "trace, debug, info, warning, error, critical, off";

bool is_log_level(const std::string& level);
// Logs to `file`. Without a file, logs to stderr in the foreground and to syslog otherwise. Replaces spdlog's default
// logger.
Result<> open_log(const std::string& file, bool foreground, const std::string& level);

}  // namespace ckptfs::fs::cli

// Durations as users write them. Stateless; any thread.
#pragma once

#include <chrono>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

// Parses "45s", "90m", "36h", "7d" or "2w". A number alone is in seconds. EINVAL, in words, for anything else and for
// more than a hundred years.
Result<std::chrono::seconds> parse_duration(const std::string& text);

}  // namespace ckptfs::io

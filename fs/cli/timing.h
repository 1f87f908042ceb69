// What the manifests of a step tell about the time that its ranks took to save it. Stateless; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "io/result.h"

namespace ckptfs::fs::cli {

// Reads the manifests in a step's folder, on a mount or not. Times are in seconds; `begun` and `durable` since 1970.
// {"ranks": [{"rank", "host", "begun", "durable", "total", "waited", "stages": {NAME: ...}}], "slowest": RANK,
//  "untimed": [RANK]}
// `waited` is how long a rank was durable before the last one was. `slowest` is the rank that the others waited for.
// Fails with ENOENT, in words, if no rank left a manifest with its times.
Result<nlohmann::json> timing_of(const std::string& step);

// A table of timing_of(): a line for each rank, a column for each stage.
std::string timing_table(const nlohmann::json& timing);

}  // namespace ckptfs::fs::cli

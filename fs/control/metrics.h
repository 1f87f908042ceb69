// The mount's counters in the text format of Prometheus, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats). Any thread. Asks the disk for nothing but its free
// space.
#pragma once

#include <string>

#include "fs/ops/filesystem.h"

namespace ckptfs::fs {

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_of(const Filesystem& fs);

}  // namespace ckptfs::fs

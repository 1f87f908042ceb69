// What the mount counts, as Prometheus reads it: the text format, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats). Any thread; asks no disk but for its free space.
#pragma once

#include <string>

#include "fs/ops/filesystem.h"

namespace ckptfs::fs {

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_of(const Filesystem& fs);

}  // namespace ckptfs::fs

// What the commands share of the machine: files of /proc, paths, and how results and errors are shown. Stateless.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/result.h"

namespace ckptfs::fs::cli {

enum ExitCode { kSuccess = 0, kFailed = 1, kUsage = 2 };

// All of a file whose size the kernel does not tell (/proc, /sys).
Result<std::string> read_text(const std::string& path);

// Absolute, without ".", ".." and symlinks as far as it exists. What cannot be walked because a dead mount lies at its
// end keeps its last name as it is.
Result<std::string> absolute_path(const std::string& path);

// `ckptfs: PATH: what was wrong; what to do` on stderr; the path is not said twice. Returns kFailed.
int fail(const std::string& path, const Error& error);
int fail(const Error& error);

void print_json(const nlohmann::json& value);
bool stdout_is_terminal();

}  // namespace ckptfs::fs::cli

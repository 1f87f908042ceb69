// What the commands share: reading files of /proc, paths, and the output of results and errors. Stateless.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/result.h"

namespace ckptfs::fs::cli {

enum ExitCode {
  kSuccess = 0,
  kFailed = 1,
  kUsage = 2,
  kDamaged = 3,  // what was asked about does not hold what was written
};

// Returns the path as an absolute one, without ".", ".." and symlinks as far as it exists. If a dead mount lies at its
// end, so that it cannot be walked, its last name stays as it is. If it cannot be walked within some seconds, since the
// daemon of a mount on it hangs, its symlinks stay.
Result<std::string> absolute_path(const std::string& path);

// Prints `ckptfs: PATH: what was wrong; what to do` on stderr, with the path only once. Returns kFailed.
int fail(const std::string& path, const Error& error);
int fail(const Error& error);

void print_json(const nlohmann::json& value);
// Prints an answer: as JSON, or by `print` for people. Returns kSuccess.
int print_answer(bool as_json, const nlohmann::json& answer, const std::function<void()>& print);
bool stdout_is_terminal();

}  // namespace ckptfs::fs::cli

#include "fs/cli/system.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fs/cli/format.h"
#include "fs/cli/limited_call.h"

namespace ckptfs::fs::cli {

namespace {

namespace files = std::filesystem;

// Walks the path. Waits for the daemons of mounts on it.
Result<std::string> resolve(const files::path& absolute) {
  std::error_code error;
  files::path resolved = files::weakly_canonical(absolute, error);
  if (error) {
    const files::path parent = files::weakly_canonical(absolute.parent_path(), error);
    if (error) return Error(error.value(), error.message());
    resolved = parent / absolute.filename();
  }
  return resolved.lexically_normal().string();
}

}  // namespace

Result<std::string> absolute_path(const std::string& path) {
  std::error_code error;
  files::path absolute = files::absolute(path, error);
  if (error) return Error(error.value(), path + ": " + error.message());
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // a slash at the end
  auto resolved = call_with_limit([&] { return resolve(absolute); });
  if (resolved) return resolved;
  if (resolved.error().errno_value() == ETIMEDOUT) return absolute.lexically_normal().string();
  return with_name(path, resolved.error());
}

int fail(const Error& error) {
  std::fprintf(stderr, "ckptfs: %s\n", printable(error.message()).c_str());
  return kFailed;
}

int fail(const std::string& path, const Error& error) {
  const bool named = error.message().find(path) != std::string::npos;
  return fail(named ? error : with_name(path, error));
}

void print_json(const nlohmann::json& value) {
  // A terminal might take C1 controls for commands. They are not ASCII, so on a terminal only ASCII is printed.
  const bool only_ascii = stdout_is_terminal();
  std::printf("%s\n", value.dump(2, ' ', only_ascii, nlohmann::json::error_handler_t::replace).c_str());
}

int print_answer(bool as_json, const nlohmann::json& answer, const std::function<void()>& print) {
  as_json ? print_json(answer) : print();
  return kSuccess;
}

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

}  // namespace ckptfs::fs::cli

#include "fs/cli/step_states.h"

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {

using nlohmann::json;

void add_paths(json& steps, const MountEntry& mount) {
  for (json& step : steps) {
    step["path"] = io::path_outside(mount, step.value("series", "") + "/" + step.value("tag", ""));
  }
}

Result<json> ask_states(const Target& target) {
  TRY_ASSIGN(json answer, ask_and_wait(target.mount, "looking at the steps", "states", {{"path", target.path}}));
  add_paths(answer.at("steps"), target.mount);
  return answer;
}

bool is_complete(const json& step) {
  const std::string state = step.value("state", "");
  return state == "complete" || state == "sealed";
}

bool is_whole(const json& step) { return is_complete(step) || step.value("state", "") == "weights"; }

std::string state_and_reason(const json& step) {
  const std::string reason = step.value("reason", "");
  return step.value("state", "unknown") + (reason.empty() ? "" : ": " + reason);
}

int exit_code_of(const json& step) {
  if (step.value("state", "") == "damaged") return kDamaged;
  return is_complete(step) ? kSuccess : kFailed;
}

bool may_pass(const Error& error) {
  const int code = error.errno_value();
  return code == ENOENT || code == ECONNREFUSED || code == ENOTCONN || code == ECONNRESET || code == EPIPE ||
         code == ENODATA || code == EOPNOTSUPP || code == ETIMEDOUT;
}

void ToldOnce::tell(const Error& error) {
  if (told_ == error.message()) return;
  told_ = error.message();
  std::fprintf(stderr, "ckptfs: waiting: %s\n", printable(told_).c_str());
}

}  // namespace ckptfs::fs::cli

// What `latest`, `state`, `wait` and `watch` share: the states of steps, and waiting for the daemon. Main thread only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fs/cli/client.h"

namespace ckptfs::fs::cli {

// Gives each step its "path", with the mount point.
void add_paths(nlohmann::json& steps, const MountEntry& mount);
// The answer of the command `states` (fs/control/commands.h). Each step has its "path", too, with the mount point.
Result<nlohmann::json> ask_states(const Target& target);

// complete, sealed or weights: nobody has to finish it.
bool is_whole(const nlohmann::json& step);
// complete or sealed: a training goes on from it.
bool is_complete(const nlohmann::json& step);
// "incomplete: optimizer.pt is not there"
std::string state_and_reason(const nlohmann::json& step);
// kSuccess if it is complete, kDamaged, or else kFailed (system.h).
int exit_code_of(const nlohmann::json& step);

// While the daemon is started anew, or the series is not there yet, there is something to wait for.
bool may_pass(const Error& error);

// Says on stderr what is waited for, each reason once in a row.
class ToldOnce {
 public:
  void tell(const Error& error);

 private:
  std::string told_;
};

}  // namespace ckptfs::fs::cli

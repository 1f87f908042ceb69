// What `latest`, `state` and `wait` ask the daemon: the states of steps, without what they cost. Stateless.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fs/cli/client.h"

namespace ckptfs::fs::cli {

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

}  // namespace ckptfs::fs::cli

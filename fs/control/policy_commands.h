// What the daemon answers about rotation (fs/steps/rotation.h) and removal (fs/steps/removals.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "fs/control/server.h"
#include "fs/steps/step_facts.h"
#include "meta/steps/retention.h"

namespace ckptfs::fs {

class Filesystem;

// Of one that could not be looked at without "files" and "bytes". {"tag", "number", "state", "reason", "files",
// "bytes", "ranks", "completed", "metric", "stays", "by"}
nlohmann::json judged_step(const StepStatus& step, const meta::Decision& decision);

// Adds the commands to the server. `fs` must outlive the server's stop().
//   policy {"path", "set": {rule: value}, "dry_run"}
//        -> {"series", "set", "armed", "is_armed", "steps": [judged_step()], "others": [{"name", "reason"}],
//        "warnings"}: what the rules say of each step of the series at
//           `path`; an empty value takes a rule away; with dry_run nothing is set. Needs write permission to set.
//   rm {"path"} -> {}: removes a step; needs write permission on its series
void add_policy_commands(ControlServer& server, Filesystem& fs);

}  // namespace ckptfs::fs

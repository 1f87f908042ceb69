// Commands of the control socket about rotation (fs/steps/rotation.h) and removal (fs/steps/removals.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "fs/control/server.h"
#include "fs/steps/step_facts.h"
#include "meta/steps/retention.h"

namespace ckptfs::fs {

class Filesystem;

// {"tag", "number", "state", "reason", "files", "bytes", "ranks", "completed", "owner", "metric", "stays", "thins",
// "full_because", "by"}. "files" and "bytes" are missing for a step that could not be inspected.
nlohmann::json judged_step(const StepStatus& step, const meta::Decision& decision);

// Adds the commands to the server. `fs` must outlive the server's stop().
//   policy {"path", "set": {rule: value}, "dry_run"}
//        -> {"series", "set", "armed", "is_armed", "steps": [judged_step()], "others": [{"name", "reason"}],
//            "warnings"}: what the rules say of each step of the series at `path`. An empty value takes a rule away.
//           With dry_run nothing is set. To set rules needs write permission.
//   rm {"path"} -> {"removed"}: removes a step; needs write permission on its series
//   thin {"path", "to", "dry_run"}
//        -> {"step", "from", "type", "dry_run", "exclusive_before", "exclusive_after", "freed",
//            "kept": [{"name", "size", "digest"}], "went": [likewise]}: needs what rm needs, and write permission on
//            the step
void add_policy_commands(ControlServer& server, Filesystem& fs);

}  // namespace ckptfs::fs

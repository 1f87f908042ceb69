// What the daemon answers about rotation (fs/rotation.h) and removal (fs/removals.h).
#pragma once

#include "fs/control/server.h"

namespace ckptfs::fs {

class Filesystem;

// Adds the commands to the server. `fs` must outlive the server's stop().
//   policy {"path", "set": {rule: value}, "dry_run"}
//        -> {"series", "set", "armed", "is_armed", "steps": [{"tag", "number", "state", "reason", "completed", "stays",
//           "by"}], "others": [{"name", "reason"}], "warnings"}: what the rules say of each step of the series at
//           `path`; an empty value takes a rule away; with dry_run nothing is set. Needs write permission to set.
//   rm {"path"} -> {}: removes a step; needs write permission on its series
void add_policy_commands(ControlServer& server, Filesystem& fs);

}  // namespace ckptfs::fs

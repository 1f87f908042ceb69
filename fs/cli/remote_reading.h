// What the commands share that read steps from a remote: how they are ended, their progress, and what it cost.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fs/cli/progress.h"
#include "fs/cli/remote_options.h"
#include "meta/remote/commit.h"
#include "meta/remote/remote_step.h"

namespace ckptfs::fs::cli {

// The first Ctrl-C ends the work in order, so that nothing half done stays. The second one ends the process.
void end_in_order();

// Both stop at the first Ctrl-C.
meta::remote::ReadSettings settings_of(const Remote& remote, Progress& line);
io::RequestLimits limits_of(const Remote& remote);

// Without those that were removed there.
Result<std::vector<meta::remote::CommittedStep>> standing_steps(const Remote& remote);
// ENOENT, in words: there is no such step, or it was removed there.
Result<meta::remote::CommittedStep> find_standing(const Remote& remote, const std::string& name);

nlohmann::json cost_of(io::RequestCounts& counts);
void print_cost(io::RequestCounts& counts);

}  // namespace ckptfs::fs::cli

// Commands of the control socket about remotes.
//   remote_add {"series", settings as in RemoteSettings} -> {"id", "slots", "made", "host"}; for who mounted it
//   remote_remove {"series"}                             -> {}; likewise
//   remote_status {"path"}    -> {"remotes": [...]}: of one series or step, or of all that the caller may list
//   push {"path"}             -> {"step"}: pushes the step next; for who may write to it
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "fs/control/server.h"
#include "fs/remote/remotes.h"

namespace ckptfs::fs {

class Filesystem;

void add_remote_commands(ControlServer& server, Filesystem& fs);

// What is known of each remote, without its steps: for `status` and the page.
nlohmann::json remotes_of(const Filesystem& fs);

}  // namespace ckptfs::fs

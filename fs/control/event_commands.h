// The command of the control socket that `ckptfs watch` asks: what happened to steps (meta/tree/step_events.h).
#pragma once

#include "fs/control/server.h"

namespace ckptfs::fs {

class Filesystem;

// Adds the command to the server. `fs` must outlive the server's stop().
//   events {"path", "since"} -> {"events": [{"number", "time", "event", "series", "tag", "owner", "detail"}], "since",
//   "lost"}:
//     up to 1,000, in order, of the series at `path`, or for "/" of every series that the caller may list; those behind
//     the number `since`, or without one none. "since" of the answer is where to go on. "lost": so many are kept no
//     more. What is told survives a power cut. EINVAL: the store has not had that many, or the path can be no series.
void add_event_commands(ControlServer& server, Filesystem& fs);

}  // namespace ckptfs::fs

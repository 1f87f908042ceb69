// Commands of the control socket: status, save, ls, show, du. Each request is checked against the permissions of the
// inode that it is about, as the kernel would check a caller of the mount.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fs/control/server.h"
#include "fs/steps/rotation.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {

class Filesystem;

// Adds the commands to the server. `fs` must outlive the server's stop().
//   status {}                      -> status_of()
//   save {"series", "tag"}         -> {"step", "tag", "files", "cloned", "bytes", "seconds", "already_saved",
//                                     "warnings"}; needs write and search permission on the series
//   ls {"path"}                    -> {"steps": [...]}: of the series at `path`, of that one step, or, for "/", of
//                                     every series that the caller may read
//   states {"path"}                -> {"steps": [as in ls, without what they cost, and with "trusted": it is the
//                                     caller's or the series' owner's], "newest": {SERIES: TAG}}: the step that the
//                                     caller goes on from; "": none is complete
//   show {"path"}                  -> {"step": as in ls, "files": [{"path", "apparent", "exclusive", "shared"}]}
// du {"path"}                    -> {"steps": [...], "series": {...}, "live", "rest", "nobody", "all"}: what each
//                                     step costs on the disk, and in "series" all steps of each series together.
//                                     "live", "rest" and "nobody" are swap folders, other files, and blobs without a
//                                     name. "all": bytes on the disk of everything, each block once
void add_commands(ControlServer& server, Filesystem& fs);

// What `ls` and `du` answer root for the whole mount, from one inspection: {"steps", "usage"}.
Result<nlohmann::json> inspect_all_steps(meta::Store& store, Rotation& rotation, const PushStates& pushes);

// The steps at `path` that the caller may see and list; "/": of all series.
Result<std::vector<meta::StepInfo>> visible_steps(meta::Store& store, const Peer& peer, const std::string& path);

}  // namespace ckptfs::fs

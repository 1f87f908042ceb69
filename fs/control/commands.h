// What the daemon answers on its control socket: status, save, ls, show, du. Each request is checked against the
// permissions of the inode it is about, as the kernel would check a caller of the mount.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fs/control/permission.h"
#include "fs/control/server.h"
#include "fs/mount.h"
#include "meta/steps.h"
#include "meta/tree.h"

namespace ckptfs::fs {

class Filesystem;

// Adds the commands to the server. `mount` must outlive the server's stop().
//   status {}                      -> Mount::status
//   save {"series", "tag"}         -> Mount::save; needs write and search permission on the series
//   ls {"path"}                    -> {"steps": [...]}: of the series at `path`, of that one step, or, for "/", of
//                                     every series that the caller may read
//   show {"path"}                  -> {"step": as in ls, "files": [{"path", "apparent", "exclusive", "shared"}]}
//   du {"path"}                    -> {"steps": [...], "series": {...}, "live", "rest", "nobody", "all"}: what they
//                                     cost on the disk; in "series" all steps of each together, behind it what is no
//                                     step; "all": bytes on the disk of everything, each block once
void add_commands(ControlServer& server, Mount& mount);

// What `ls` and `du` answer of the whole mount, as root asks, from one look: {"steps", "usage"}.
Result<nlohmann::json> look_at_all(Filesystem& fs);

// The steps at `path` that the caller may see and list; "/": of all series.
Result<std::vector<meta::StepInfo>> visible_steps(meta::Store& store, const Peer& peer, const std::string& path);

// Walks `path` from the root as `who` would: search permission on the way, `wanted` at its end. EACCES names where.
Result<meta::InodeNumber> resolve_as(const meta::Tree& tree, const Credentials& who, const std::string& path,
                                     unsigned wanted);

}  // namespace ckptfs::fs

// The commands that serve gpu/. They hand out descriptors of blobs to clients that may open the file, so that a client
// reads and writes the blobs past the mount. They also carry a step that is saved in this way from its first file until
// it is there (gpu/step_save.h, meta/steps/partial.h).
//
// A client keeps the file open through the mount meanwhile, so that the daemon still knows whether a file is open or
// written to. A file that somebody writes to is read through the mount.
//
// A blob that a client may write to is never frozen. Files are frozen behind the gate when nobody can write to them any
// more, or as clones (meta/steps/seal.h).
#pragma once

#include "fs/control/server.h"

namespace ckptfs::fs {

class Filesystem;

// Adds the commands to the server; `fs` must outlive the server's stop(). Paths are those of the mount.
//   blobs {"paths", "write"}   -> {"files": [{"inode"} or {"errno", "error"}]}, and a descriptor for each that has an
//                                 inode, in that order. For reading a client must be allowed to read the file. EBUSY:
//                                 somebody has it open for writing, so its bytes may not be in the blob. EACCES: it is
//                                 a live swap file that the client may not write. The client could clone from the
//                                 descriptor, and then the file's COW reserve would be wrong. For writing the client
//                                 must have the file open for writing through the mount.
// begin {"series", "tag", "attempt"} -> {"path"}: the folder for the files of the attempt
// freeze {"paths"}           -> {}: freezes these closed files, durably
// commit {"path", "tag", "world_size", "seal"} -> {"step"}, or {"missing": [ranks], "reason"} if not all ranks are
//                                 done. Then the next rank that is done asks again.
// fetch_begin {"series", "tag", "attempt"} -> {"path", "lenders": [paths]}: likewise, of `ckptfs fetch`. There must be
// no
//                                 step of that name, and the series is no step (Existing::refuse). `lenders`: steps
//                                 that may hold the same.
// fetch_commit {"path", "fetched": as FetchedStep} -> {"step"}: the folder becomes the step. All of it must be
//                                 durable.
// loaded {"path", "slowest", "host", "seconds", "stages": {stage: seconds}} -> {}
//                                 A group of ranks has loaded the path, which the client may read. The page and the
//                                 metrics tell of the last load.
void add_blob_commands(ControlServer& server, Filesystem& fs);

}  // namespace ckptfs::fs

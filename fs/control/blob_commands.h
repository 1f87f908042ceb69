// The commands behind gpu/: they hand out descriptors of blobs, to whoever may open the file, so that a client reads
// and writes them without the mount between. They also carry a step that was saved so from its first file to its
// appearance (gpu/step_save.h, meta/steps/partial.h).
//
// A client keeps the file open through the mount meanwhile, so that everything that asks whether it is open, or written
// to, stays right. What somebody writes to is read through the mount.
//
// What a client may write to is never frozen: files are frozen behind the gate when nobody can write to them any more,
// or as clones (meta/steps/partial.h).
#pragma once

#include "fs/control/server.h"

namespace ckptfs::fs {

class Filesystem;

// Adds the commands to the server; `fs` must outlive the server's stop(). Paths are those of the mount.
//   blobs {"paths", "write"}   -> {"files": [{"inode"} or {"errno", "error"}]}, and a descriptor for each that has an
//                                 inode, in that order. To be read: whoever may read the file gets it, unless somebody
//                                 has it open for writing (EBUSY: its bytes may not be in the blob), or it is a live
//                                 swap file and may not be written by that user (EACCES: the descriptor can be cloned
//                                 from, and then overwriting the file takes space that nobody knows of). To be written:
//                                 only while it is open for writing through the mount, which keeps all else right.
//   begin {"series", "tag", "attempt"} -> {"path"}: of the folder that the attempt's files are to be made in
//   freeze {"paths"}           -> {}: these files, closed, are frozen, durably
//   commit {"path", "tag", "world_size", "seal"} -> {"step"}, or {"missing": [ranks], "reason"} where not all ranks are
//                                 done: then it is for the next of them to ask
void add_blob_commands(ControlServer& server, Filesystem& fs);

}  // namespace ckptfs::fs

// The commands that look into files: verify and diff. Each request works for about a second and answers with what it
// has found and where to go on, so that the client shows progress, and whoever goes away leaves nothing behind.
#pragma once

#include "fs/control/server.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

// Adds the commands to the server; `store` must outlive the server's stop(). The caller must be allowed to read every
// folder on the way.
//   verify {"path", "from"}          -> {"files": [{"path", "state", "damaged": [{"offset", "length"}]}], "bytes",
//                                        "total", "next"}: of all files below `path`, "/": of all steps. "bytes" were
//                                        read now, of "total". A file that takes several requests is there in each;
//                                        of files that name one blob the first is read.
//   diff {"first", "second", "from"} -> {"files": [{"path", "change", "bytes", "size", "read"}], "next"}: `change` is
//                                        "same", "changed", "added" or "removed" (as seen from `first`)
// `from` is the `next` of the answer before; the first request has none, nor has the last answer.
void add_content_commands(ControlServer& server, meta::Store& store);

}  // namespace ckptfs::fs

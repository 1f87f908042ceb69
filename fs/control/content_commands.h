// Commands of the control socket that read files: verify and diff. Each request works for about a second. It answers
// with what it has found and where to go on. So the client shows progress, and a client that goes away leaves nothing
// behind. Beside them accept, which reads nothing.
#pragma once

#include "fs/control/server.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

// Adds the commands to the server; `store` must outlive the server's stop(). The caller must be allowed to read every
// folder on the way.
//   verify {"path", "from"}          -> {"files": [{"path", "state", "damaged": [{"offset", "length"}]}], "bytes",
//                                        "total", "left_out", "next"}: of all files below `path`, or with "/" of all
//                                        steps. "bytes" were read by this request, of "total", which only the first
//                                        answer has. "left_out": files and folders that the caller may not read, or
//                                        that lie too deep. A file that takes several requests is in each answer. Of
//                                        files that name one blob only the first is read.
//   accept {"path"}                  -> {"accepted": [paths]}: takes what the disk holds as the content of the suspect
//                                        files at and below `path`. Needs read and write permission on all files.
//   diff {"first", "second", "from"} -> {"files": [{"path", "change", "bytes", "size", "read"}], "next"}: `change` is
//                                        "same", "changed", "added" or "removed" (as seen from `first`)
// `from` is the `next` of the previous answer. The first request has no `from`, the last answer no `next`.
void add_content_commands(ControlServer& server, meta::Store& store);

}  // namespace ckptfs::fs

// The operations of a remote mount. What is at hand is answered at once; for what has to be fetched the work goes on on
// a lane of the user's, or, for the bytes of a file, in the ChunkReader.
#pragma once

#include <fuse_lowlevel.h>

namespace ckptfs::fs::remote_mount {

void add_name_operations(fuse_lowlevel_ops& operations);
void add_file_operations(fuse_lowlevel_ops& operations);
// All.
void add_operations(fuse_lowlevel_ops& operations);

}  // namespace ckptfs::fs::remote_mount

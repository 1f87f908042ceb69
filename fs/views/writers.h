// Who writes to a file, as far as the node table and the kernel tell. Stateless; any thread.
#pragma once

#include "fs/open/open_files.h"
#include "fs/views/files_of_step.h"

namespace ckptfs::fs::views {

// As seen in the kernel, where it can tell: by a mapping whose descriptor is closed, too, and no more when a close
// has returned. `blob`: the file's, O_RDONLY.
Result<Writers> writers_of(const OpenFileTable& files, InodeNumber inode, int blob);

}  // namespace ckptfs::fs::views

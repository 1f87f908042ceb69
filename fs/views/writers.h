// Finds out who writes to a file, as far as the node table and the kernel tell. Stateless; any thread.
#pragma once

#include "fs/open/open_files.h"
#include "fs/views/files_of_step.h"

namespace ckptfs::fs::views {

// Asks the kernel if it can tell. The kernel also knows writers through a mapping whose descriptor is closed, and no
// longer knows a writer whose close() has returned. `blob`: the file's blob, O_RDONLY.
Result<Writers> writers_of(const OpenFileTable& files, InodeNumber inode, int blob);

}  // namespace ckptfs::fs::views

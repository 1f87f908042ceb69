// What a file system allocates ahead of writers: past the ends of files, and beside shared blocks that may be
// overwritten. Stateless; any thread.
#pragma once

#include "io/result.h"

namespace ckptfs::io {

enum class OpenFilesToo : bool { no, yes };

// Gives back what was allocated ahead on the whole file system of this folder (XFS_IOC_FREE_EOFBLOCKS); XFS itself does
// so up to half an hour after the last write. It is free when this returns. OpenFilesToo::yes: also of files that are
// open for writing, which will ask for it anew. Passed over are files that were written through the page cache until a
// syncfs, or the kernel's flusher after its 30 s, has been there: an fsync does not do (Linux 6.18, I_DIRTY_PAGES).
// EOPNOTSUPP where the file system is not XFS.
Result<> free_preallocated(int folder_fd, OpenFilesToo open_files);

}  // namespace ckptfs::io

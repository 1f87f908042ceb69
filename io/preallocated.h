// The blocks that a file system allocates ahead of writers: beyond the ends of files, and beside shared blocks that may
// be overwritten. Stateless; any thread.
#pragma once

#include "io/result.h"

namespace ckptfs::io {

enum class OpenFilesToo : bool { no, yes };

// Frees those blocks on the whole file system of this folder (XFS_IOC_FREE_EOFBLOCKS), before it returns. XFS by itself
// does so up to half an hour after the last write. OpenFilesToo::yes includes files that are open for writing; XFS
// allocates for them again when they grow. Files that were written through the page cache are skipped until a syncfs,
// or the kernel's flusher after its 30 s, has written them. An fsync is not enough (Linux 6.18, I_DIRTY_PAGES). Fails
// with EOPNOTSUPP if the file system is not XFS.
Result<> free_preallocated(int folder_fd, OpenFilesToo open_files);

}  // namespace ckptfs::io

// What an fsync of a file does, for one that the daemon makes durable of its own accord.
#pragma once

#include "io/result.h"
#include "meta/types.h"

namespace ckptfs::fs {

class Filesystem;

// The file's data are on the disk when it returns; its name is when the tree is synced. A failure is counted, logged,
// kept for write_error and for every handle of the file that is open now.
Result<> sync_file(Filesystem& fs, meta::InodeNumber inode);

}  // namespace ckptfs::fs

// The operations of the mount, with views in it.
#pragma once

#include <fuse_lowlevel.h>

namespace ckptfs::fs {

// `operations`: those on the tree. What is about an inode of a view goes to the operations on views instead; the name
// "views" in the root is theirs, too. To be called before the first request.
fuse_lowlevel_ops with_views(const fuse_lowlevel_ops& operations);

}  // namespace ckptfs::fs

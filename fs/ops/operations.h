// The operations of the mount, a family a file. Each `add_` puts its functions into libfuse's table.
#pragma once

#include <fuse_lowlevel.h>

namespace ckptfs::fs {

void add_name_operations(fuse_lowlevel_ops& ops);       // names.cc
void add_attribute_operations(fuse_lowlevel_ops& ops);  // attributes.cc
void add_directory_operations(fuse_lowlevel_ops& ops);  // directory.cc
void add_open_operations(fuse_lowlevel_ops& ops);       // open.cc
void add_data_operations(fuse_lowlevel_ops& ops);       // data.cc
void add_copy_operations(fuse_lowlevel_ops& ops);       // copy.cc
void add_xattr_operations(fuse_lowlevel_ops& ops);      // xattr.cc

// The operations of the mount, with views in it. `operations`: those on the tree. What is about an inode of a view goes
// to the operations on views instead (views.cc); the name "views" in the root is theirs, too. To be called before the
// first request.
fuse_lowlevel_ops with_views(const fuse_lowlevel_ops& operations);

}  // namespace ckptfs::fs

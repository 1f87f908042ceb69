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

}  // namespace ckptfs::fs

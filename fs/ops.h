// The operations of the mount, a family a file. Each `add_` puts its functions into libfuse's table.
#pragma once

#include <fuse_lowlevel.h>

namespace ckptfs::fs {

void add_name_operations(fuse_lowlevel_ops& ops);       // ops_names.cc
void add_attribute_operations(fuse_lowlevel_ops& ops);  // ops_attributes.cc
void add_directory_operations(fuse_lowlevel_ops& ops);  // ops_directory.cc
void add_open_operations(fuse_lowlevel_ops& ops);       // ops_open.cc
void add_data_operations(fuse_lowlevel_ops& ops);       // ops_data.cc
void add_copy_operations(fuse_lowlevel_ops& ops);       // ops_copy.cc
void add_xattr_operations(fuse_lowlevel_ops& ops);      // ops_xattr.cc

}  // namespace ckptfs::fs

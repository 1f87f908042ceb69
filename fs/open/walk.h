// Paths, and the regular files below a folder, for one who asks through the control socket. Stateless.
#pragma once

#include <string>
#include <vector>

#include "fs/open/permission.h"
#include "io/result.h"
#include "meta/tree/access.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs {

// Walks `path` from the root as `who` would: search permission on the way, `wanted` at its end. EACCES names where.
Result<meta::InodeNumber> resolve_as(const meta::Tree& tree, const Credentials& who, const std::string& path,
                                     unsigned wanted);
// Could `who` walk to the inode, and do there what is wanted?
Result<> reach_as(const meta::Tree& tree, const Credentials& who, meta::InodeNumber inode, unsigned wanted);

struct FoundFile {
  std::string path;  // of `top`, and from there down
  meta::InodeNumber inode = 0;
  meta::BlobNumber blob = 0;
};

// In the order of their paths. `top`: a folder, or a file for itself; `path`: what it is called. EACCES names the first
// folder that `who` may not read and search, or the first file that is not `wanted` to be: kRead, or 0 where only its
// name and size are told.
Result<std::vector<FoundFile>> files_below(const meta::Tree& tree, const Credentials& who, meta::InodeNumber top,
                                           const std::string& path, unsigned wanted);
// Likewise, without what `who` may not see and what lies too deep: these files and folders are counted in `left_out`.
Result<std::vector<FoundFile>> seen_files_below(const meta::Tree& tree, const Credentials& who, meta::InodeNumber top,
                                                const std::string& path, unsigned wanted, uint64_t& left_out);

}  // namespace ckptfs::fs

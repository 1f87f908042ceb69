// What a file system can do for files that share blocks: tried, not believed. Stateless; any thread.
#pragma once

#include <string>

#include "io/result.h"

namespace ckptfs::io {

// The name of the file system that the folder lies on: "xfs", "btrfs", "ext4", ..., from statfs's magic.
Result<std::string> filesystem_of(const std::string& folder);

struct SharingCapability {
  bool clone = false;
  bool dedupe = false;
  bool extent_size_hint = false;
  std::string filesystem;  // filesystem_of
};
// Tries clone, dedupe and hint on scratch files without a name in `folder`. `clone` also demands that FIEMAP shows the
// blocks as shared. What the file system lacks is false; an Error is a failure of the probe (no such folder, disk
// full).
Result<SharingCapability> probe_sharing(const std::string& folder);

}  // namespace ckptfs::io

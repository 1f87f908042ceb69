// The checker: recounts every reference from the tree and compares it with what the index says. Reads only; the store
// must not be mounted (it takes the lock).
#pragma once

#include <time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::meta {

// A nameless blob with content.
struct Orphan {
  std::string name;
  uint64_t bytes = 0;
  timespec mtime{};
};

struct FsckReport {
  std::vector<std::string> problems;  // each a sentence; none: clean
  std::vector<Orphan> orphans;        // kept, not a problem of consistency
  uint64_t inodes = 0;
  uint64_t blobs = 0;
  uint64_t bytes = 0;  // apparent, of all blobs
  bool clean_unmount = false;
};

Result<FsckReport> fsck(const std::string& store_folder);
// Deletes the nameless blobs that fsck lists (`ckptfs fsck --remove-orphans`); the number removed.
Result<uint64_t> remove_orphans(const std::string& store_folder);

}  // namespace ckptfs::meta

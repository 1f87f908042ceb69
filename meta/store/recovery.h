// What happens at a start, before the first request: the index is read once, and what the last daemon left half done is
// ended. After a crash blobs/ is listed, too. No file is looked at. The rest is done behind the mount
// (meta/store/inspection.h). What is durable when, and what a start refuses: meta/store/store.h.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "meta/blobs/blobs.h"
#include "meta/blobs/space.h"
#include "meta/index/index.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

struct RecoveryReport {
  bool clean = true;         // the last unmount was
  bool older_index = false;  // a copy of meta/ was put back: blobs/ has seen a newer one
  uint64_t inodes = 0;
  uint64_t blobs = 0;
  uint64_t removed_blobs = 0;      // doomed, tentative, or nameless and empty; the reaper takes them
  uint64_t orphan_blobs = 0;       // nameless, with content: kept
  uint64_t raised_references = 0;  // blobs of which the index counted fewer files than there are: corrected
};

struct Recovery {
  RecoveryReport report;
  Tree::Start start;                  // all but who is told of changes
  std::vector<InodeNumber> nameless;  // inodes without a name: to be reaped
  std::vector<BlobNumber> dead;       // for the reaper
};

// Changes the index and blobs/ as said above, adds the COW reserves of swap files to `space`, and clears the
// clean-unmount mark, durably.
Result<Recovery> recover(Index& index, const Blobs& blobs, Space& space);

}  // namespace ckptfs::meta

// Blobs that are promised to something that may not come about (a save or seal that fails, spares nobody takes).
#pragma once

#include <span>
#include <vector>

#include "meta/tree/tree.h"
#include "meta/types.h"

namespace ckptfs::meta {

// Promises so many blobs, in a change of its own.
Result<std::vector<BlobNumber>> promise_blobs(Tree& tree, size_t count);

// They are doomed, and deleted behind. Where that cannot be recorded (logged, as `what`) the next start does it, since
// they are tentative. Any thread.
void doom_unpublished(Tree& tree, std::span<const BlobNumber> blobs, const char* what);

}  // namespace ckptfs::meta

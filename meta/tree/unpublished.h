// Blobs that were promised to something that did not come about (a save or seal that failed, spares nobody took).
#pragma once

#include <span>

#include "meta/tree/tree.h"
#include "meta/types.h"

namespace ckptfs::meta {

// They are doomed, and deleted behind. Where that cannot be recorded (logged, as `what`) the next start does it, since
// they are tentative. Any thread.
void doom_unpublished(Tree& tree, std::span<const BlobNumber> blobs, const char* what);

}  // namespace ckptfs::meta

// Sharing what was written twice: blocks that two blobs hold both are had once. The digests only propose; the kernel
// compares the bytes (FIDEDUPERANGE). It happens below the blobs: neither changes what it holds.
#pragma once

#include "meta/care/digests.h"

namespace ckptfs::meta {

// Has `to` share with `from` each chunk that both hold at the same offset, and do not share yet. The bytes that are now
// shared and were not before. Ends early where `pause` says so. Both must have digests; one that has none, or went,
// shares nothing.
Result<uint64_t> share_equal_chunks(Store& store, BlobNumber from, BlobNumber to, const Pause& pause);

}  // namespace ckptfs::meta

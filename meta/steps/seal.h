// Freezing: live files become frozen, in one batch behind a closed gate (meta/tree/gate.h), without any copy. Sealing a
// step freezes every file in it, and makes everything in it immutable.
//
// A file with names outside the step, or with a mapping that outlived its descriptor, is frozen as a clone, so that
// those who can still write to the file write to another blob. A file that somebody has open for writing is EBUSY. A
// suspect file is refused.
#pragma once

#include <vector>

#include "meta/store/store.h"

namespace ckptfs::meta {

// Makes a step read-only for good. EBUSY while a writer is open in it, naming the file; EINVAL for what is no step.
// Durable on return.
Result<> seal(Store& store, InodeNumber step);

// The names of these files (regular, live) in this folder become frozen, durably. EBUSY: one is open for writing. One
// that somebody can still write to without having it open (a descriptor handed out, a mapping), or that has names
// elsewhere, is frozen as a clone of what it is now: its other names go on being written.
Result<> freeze_files(Store& store, InodeNumber folder, const std::vector<InodeNumber>& files);

}  // namespace ckptfs::meta

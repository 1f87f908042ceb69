// Save: a point-in-time clone of the live swap files into a step. One save at a time, in this order (class Save in
// meta/steps/save.cc):
//   1. Plan which files (meta/steps/source.h), and write back what is dirty, with no gate closed and no lock held.
//   2. Close the gate (meta/tree/gate.h). Renames, unlinks, truncates and opens for writing in the source are set
//      aside, and no thread waits. Plan again if anything in the tree has changed since.
//   3. Look at each file: a suspect one fails the save, and somebody may be writing to it.
//   4. Check the room for the COW reserves of all live files afterwards (meta/blobs/space.h). ENOSPC fails the save as
//      a whole.
//   5. Promise the clones as tentative blobs, empty ones that are there already first (meta/tree/spare_blobs.h).
//      FICLONE each file that has changed since its last save into one of them, in parallel. A file that has not
//      changed names the blob that it was last saved as.
//   6. Open the gate. Sync the clones. Publish the step in one batch, synced. Answer. A crash before that deletes what
//      is tentative.
//
// *Changed since its last save* is a file whose InodeRecord::saved_blob is 0 (meta/types.h says what clears it), or
// that somebody has open for writing or maps, by our own count or by the lease probe (io/lease.h). The probe also finds
// mappings whose descriptor is closed, and writers that outlived a killed daemon. When in doubt, it has changed.
//
// FICLONE is a point in time for each file, under writers and mappings, too. All files together are consistent if the
// trainer is between two steps, as it is inside `save_checkpoint`.
#pragma once

#include "meta/steps/source.h"

namespace ckptfs::meta {

// Returns when the step is durable. Blocks for as long as that takes: call it on a thread of its own. One save at a
// time (a second waits). Errors carry words: EINVAL (tag, several sources), ENOENT (no source), EEXIST, EPERM (sealed),
// ENOSPC (no room for the COW reserves afterwards), EACCES. A save that fails leaves nothing.
//
// The caller must be able to reach the source by its path, read its folders, and read and write each file that is
// taken: write, since the next overwrite of a file that was saved needs new blocks. To the series and to a step that is
// there already the caller must be able to write.
Result<SaveResult> save(Store& store, const SaveRequest& request);

// What was asked for cannot be (no such source, a tag that is taken, ...): nothing is wrong with the store.
bool is_refusal(const Error& error);

}  // namespace ckptfs::meta

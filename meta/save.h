// Save: a point-in-time clone of the live swap files into a step.
#pragma once

#include "meta/save_request.h"
#include "meta/store.h"

namespace ckptfs::meta {

// Returns when the step is durable. Blocks for as long as that takes: call it on a thread of its own. One save at a
// time (a second waits). Errors carry words: EINVAL (tag, several sources), ENOENT (no source), EEXIST, EPERM (sealed),
// ENOSPC (the store could not take what would be owed afterwards), EACCES. A save that fails leaves nothing.
//
// The caller must be able to reach the source by its path, read its folders, and read and write each file that is
// taken: write, since the next overwrite of a file that was saved needs new blocks. To the series and to a step that is
// there already the caller must be able to write.
Result<SaveResult> save(Store& store, const SaveRequest& request);

// What was asked for cannot be (no such source, a tag that is taken, ...): nothing is wrong with the store.
bool is_refusal(const Error& error);

}  // namespace ckptfs::meta

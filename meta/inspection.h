// What a start after a crash puts off, so that a mount with millions of files is there within seconds: each file is
// looked at, behind the mount. Found are frozen blobs that are shorter than they should be (damage), live files that
// changed since their digests were taken, and those that a survivor of the last daemon writes to.
//
// Until that is done each live file counts as one that a survivor may write to (FileHealth::is_recovered), so its
// digests are not believed and its attributes not cached; rotation removes nothing; and the end of the mount is not a
// clean one, so the next start looks again.
//
// Thread safety: one inspection at a time. No lock is held while a file is looked at.
#pragma once

#include <functional>

#include "meta/blobs.h"
#include "meta/frontiers.h"
#include "meta/index.h"
#include "meta/tree.h"

namespace ckptfs::meta {

// Nothing to do after a clean end, or when it is done. It ends early, and begins anew the next time, when `go_on` says
// false.
Result<> inspect(Tree& tree, const Index& index, const Blobs& blobs, Frontiers& frontiers,
                 const std::function<bool()>& go_on);

}  // namespace ckptfs::meta

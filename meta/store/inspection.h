// What a start after a crash puts off, so that a mount with millions of files is there within seconds: each file is
// looked at, behind the mount. It finds frozen blobs that are shorter than they should be (damage), live files that
// changed since their digests were taken, and live files that a program which survived the last daemon still writes to.
//
// Until that is done each live file counts as one that such a program may write to (Tree::is_recovered): its digests
// are not believed and its attributes are not cached. Rotation removes nothing. The end of the mount is not a clean
// one, so the next start looks again.
//
// Thread safety: one inspection at a time. No lock is held while a file is looked at.
#pragma once

#include <functional>

#include "meta/blobs/blobs.h"
#include "meta/index/index.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

// Nothing to do after a clean end, or when it is done. It ends early, and begins anew the next time, when `go_on` says
// false.
Result<> inspect(Tree& tree, const Index& index, const Blobs& blobs, const std::function<bool()>& go_on);

}  // namespace ckptfs::meta

// Sets an abandoned step aside: gives it a name by which no program takes it for a step of a training. When that is
// done, and when not: fs/steps/set_aside.h.
//
// Thread safety: all of it.
#pragma once

#include <string>

#include "meta/store/store.h"

namespace ckptfs::meta {

// Renames the step `tag` of `series` to incomplete-TAG, or incomplete-2-TAG and so on where there is such a name
// already. Durable on return of the new name. It stays a step, also if it holds nothing. ENOENT: the name is another's.
Result<std::string> set_aside(Store& store, InodeNumber series, InodeNumber step, const std::string& tag);

}  // namespace ckptfs::meta

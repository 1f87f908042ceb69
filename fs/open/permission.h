// Who may do what through the control socket: meta/tree/access.h, under the names that are used here. The kernel never
// sees these requests, so the daemon has to ask.
#pragma once

#include "meta/tree/access.h"

namespace ckptfs::fs {

using meta::Credentials;
using meta::kRead;
using meta::kSearch;
using meta::kWrite;
using meta::may_access;
using meta::may_share;

}  // namespace ckptfs::fs

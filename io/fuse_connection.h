// Ends a FUSE mount's connection from outside, through the kernel's fusectl. Stateless.
#pragma once

#include <functional>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

// Whatever waits for the daemon of the mount with this device ("MAJOR:MINOR") fails, as when the daemon has ended. For
// a daemon that will answer nothing any more: one that was killed and cannot end, since a thread of it waits in the
// kernel for what a request holds. EPERM, EACCES: the mount is another user's.
// Numbers of connections are used again. `is_still_it`, if given, is asked once the connection is held; false: ENOENT.
Result<> abort_connection(const std::string& device, const std::function<bool()>& is_still_it = {});

}  // namespace ckptfs::io

// Aborts the connection of a FUSE mount from outside, through the kernel's fusectl. Stateless.
#pragma once

#include <functional>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

// Aborts the connection of the mount with this device ("MAJOR:MINOR"). Every request that waits for its daemon then
// fails, as if the daemon had ended. This is for a daemon that was killed but cannot end, because one of its threads
// waits in the kernel for something that a request holds. Fails with EPERM or EACCES if the mount is another user's.
//
// The kernel reuses connection numbers. So `is_still_it`, if given, is called once the connection's file is open; if it
// returns false, nothing is aborted and the error is ENOENT.
Result<> abort_connection(const std::string& device, const std::function<bool()>& is_still_it = {});

}  // namespace ckptfs::io

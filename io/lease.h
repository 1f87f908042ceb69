// Asks the kernel whether a file is open elsewhere, by taking a lease (fcntl F_SETLEASE) and giving it back at once.
// `fd` must be the caller's own O_RDONLY descriptor. The process must hold no writable descriptor of that file
// meanwhile, or every answer is "busy". Under races the answer may be "busy" wrongly, but never "free" wrongly. SIGIO
// must be ignored (ignore_lease_signals). Any thread.
#pragma once

#include "io/result.h"

namespace ckptfs::io {

// Returns true while the file is open for writing anywhere, including by a mapping whose descriptor is closed.
Result<bool> has_writer(int fd);
// Call this once per process, before the first probe.
void ignore_lease_signals();

}  // namespace ckptfs::io

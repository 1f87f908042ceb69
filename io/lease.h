// Who else has a file open, asked of the kernel by trying a lease (fcntl F_SETLEASE) and giving it back at once.
// `fd` is the caller's own O_RDONLY descriptor; the process holds no writable descriptor of that file meanwhile, else
// every answer is busy. A false "busy" is possible under races, a false "free" is not. SIGIO must be ignored
// (ignore_lease_signals). Any thread.
#pragma once

#include "io/result.h"

namespace ckptfs::io {

// True while anything (also a mapping whose descriptor is closed) has the file open for writing.
Result<bool> has_writer(int fd);
// True while anything but `fd` itself has the file open at all.
Result<bool> has_opener(int fd);
// Once per process, before the first probe.
void ignore_lease_signals();

}  // namespace ckptfs::io

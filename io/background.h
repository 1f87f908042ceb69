// A thread that stays out of the way.
#pragma once

namespace ckptfs::io {

// The calling thread reads and writes when nobody else does (I/O priority class "idle"), and gets little of a busy
// processor. Logged where the kernel refuses.
void become_background_thread();

}  // namespace ckptfs::io

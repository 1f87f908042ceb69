// Low priority for the threads that work in the background.
#pragma once

namespace ckptfs::io {

// Gives the calling thread the I/O priority class "idle", so that it reads and writes only when nobody else does, and a
// low CPU priority. A refusal by the kernel is logged.
void become_background_thread();

}  // namespace ckptfs::io

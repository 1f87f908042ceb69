// Keeps secrets out of core files, by having none written for a process that holds one. To keep only the secret's own
// memory out would not be enough: copies of it lie in the environment, in buffers of libcurl and OpenSSL, and in memory
// that was freed.
//
// Thread-safe.
#pragma once

namespace ckptfs::io {

// Called by the command at its start. It acts at once if the environment has a secret. libckptfs does not call it: a
// trainer's process is not ours, and its owner could no longer attach a debugger or profiler to it.
void allow_no_secret_in_core_files();

// Called before a secret is looked for.
void expect_secret();

}  // namespace ckptfs::io

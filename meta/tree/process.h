// When a process began.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace ckptfs::meta {

// CLOCK_REALTIME nanoseconds at which the process that thread `tid` belongs to began; 0 when it is gone or unknown.
// Remembers answers for a second: a trainer opens many files in a row. Any thread may call it.
uint64_t process_start(pid_t tid);

}  // namespace ckptfs::meta

// Runs independent blocking calls (clone, sync) on many files in parallel.
#pragma once

#include <cstddef>
#include <functional>

#include "io/result.h"

namespace ckptfs::io {

// Calls work(i) for each i in [0, count) on up to `threads` threads, including the caller's. Returns when all of them
// have ended. After the first error it starts no further i, and returns that error.
Result<> for_each_parallel(size_t count, unsigned threads, const std::function<Result<>(size_t)>& work);

}  // namespace ckptfs::io

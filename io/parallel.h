// A small pool for independent blocking calls (clone, sync) on many files.
#pragma once

#include <cstddef>
#include <functional>

#include "io/result.h"

namespace ckptfs::io {

// Calls work(i) for each i in [0, count) on up to `threads` threads, the caller's among them; returns when all have
// ended. After the first error no further i is begun; that error is returned.
Result<> for_each_parallel(size_t count, unsigned threads, const std::function<Result<>(size_t)>& work);

}  // namespace ckptfs::io

// How the functions of the C interface fail: an errno is returned, and the words are kept for ckptfs_last_error().
//
// Thread safety: the words are those of the calling thread.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <string>

#include "io/result.h"

namespace ckptfs::gpu {

inline thread_local std::string last_error_text;

inline int fail(const Error& error) {
  last_error_text = error.message();
  return error.errno_value() == 0 ? EIO : error.errno_value();
}

// No exception may leave the C interface.
template <class Body>
int guarded(const Body& body) {
  try {
    const Result<> done = body();
    return done ? 0 : fail(done.error());
  } catch (const std::bad_alloc&) {
    return fail(Error(ENOMEM));
  } catch (const std::exception& e) {
    return fail(Error(EIO, e.what()));
  }
}

}  // namespace ckptfs::gpu

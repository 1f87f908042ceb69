// Access to mapped files. A page that cannot be had, since the disk fails or the file has become shorter, ends a
// process by SIGBUS; here it is an answer.
//
// Thread safety: all of it. The first call takes over the process's SIGBUS; one that comes from elsewhere ends it
// still.
#pragma once

#include <type_traits>

namespace ckptfs::io {

// What access_mapped() does, with `context` for what a lambda would capture.
bool run_access(void (*access)(void*), void* context);

// Runs `access`, which may only read and write memory: it may be left in its middle, without destructors. False: it
// was. Not to be nested.
template <typename Access>
bool access_mapped(Access&& access) {
  return run_access([](void* context) { (*static_cast<std::remove_reference_t<Access>*>(context))(); }, &access);
}

}  // namespace ckptfs::io

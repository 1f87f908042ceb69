// Access to mapped files. If a page cannot be had, because the disk fails or the file has become shorter, the kernel
// sends SIGBUS, which would end the process. Here it is a return value.
//
// Thread-safe. The first call installs a handler for SIGBUS. A SIGBUS from anywhere else still ends the process.
#pragma once

#include <type_traits>

namespace ckptfs::io {

// The implementation of access_mapped(); `context` replaces a lambda's captures.
bool run_access(void (*access)(void*), void* context);

// Runs `access`. Returns false if a SIGBUS ended it: it then stopped in the middle, without running destructors. So
// `access` may do nothing but read and write memory. Calls must not be nested.
template <typename Access>
bool access_mapped(Access&& access) {
  return run_access([](void* context) { (*static_cast<std::remove_reference_t<Access>*>(context))(); }, &access);
}

}  // namespace ckptfs::io

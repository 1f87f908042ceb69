// A system call that is repeated while a signal interrupts it. Stateless; any thread.
#pragma once

#include <cerrno>

namespace ckptfs::io {

// `call` returns -1 and sets errno where it fails, as system calls do.
template <class Call>
auto retry_interrupted(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace ckptfs::io

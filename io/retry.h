// Repeats a system call while a signal interrupts it. Stateless; any thread.
#pragma once

#include <cerrno>

namespace ckptfs::io {

// `call` must return -1 and set errno on failure, as system calls do.
template <class Call>
auto retry_interrupted(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace ckptfs::io

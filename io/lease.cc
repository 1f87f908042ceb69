#include "io/lease.h"

#include <fcntl.h>

#include <csignal>

#include "io/retry.h"

namespace ckptfs::io {

Result<bool> has_writer(int fd) {
  if (retry_interrupted([&] { return ::fcntl(fd, F_SETLEASE, F_RDLCK); }) != 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    return last_error("lease probe");
  }
  // EAGAIN: another thread that probes through the same open file has already given the lease back.
  if (retry_interrupted([&] { return ::fcntl(fd, F_SETLEASE, F_UNLCK); }) != 0 && errno != EAGAIN) {
    return last_error("lease probe, giving back");
  }
  return false;
}

void ignore_lease_signals() { std::signal(SIGIO, SIG_IGN); }

}  // namespace ckptfs::io

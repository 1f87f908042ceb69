#include "io/lease.h"

#include <fcntl.h>

#include <csignal>

#include "io/retry.h"

namespace ckptfs::io {

namespace {

// Returns true if the kernel refuses the lease because the file is open elsewhere.
Result<bool> refused(int fd, int lease) {
  if (retry_interrupted([&] { return ::fcntl(fd, F_SETLEASE, lease); }) != 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    return last_error("lease probe");
  }
  // EAGAIN: another thread that probes through the same open file has already given the lease back.
  if (retry_interrupted([&] { return ::fcntl(fd, F_SETLEASE, F_UNLCK); }) != 0 && errno != EAGAIN) {
    return last_error("lease probe, giving back");
  }
  return false;
}

}  // namespace

Result<bool> has_writer(int fd) { return refused(fd, F_RDLCK); }

Result<bool> has_opener(int fd) { return refused(fd, F_WRLCK); }

void ignore_lease_signals() { std::signal(SIGIO, SIG_IGN); }

}  // namespace ckptfs::io

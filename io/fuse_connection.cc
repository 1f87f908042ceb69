#include "io/fuse_connection.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "io/fd.h"

namespace ckptfs::io {

namespace {

// Mounts fusectl without a mount point, because not every system mounts it at /sys/fs/fuse/connections. By system
// calls: glibc has their functions from 2.36 on.
Result<Fd> own_fusectl() {
  const Fd context(static_cast<int>(::syscall(SYS_fsopen, "fusectl", FSOPEN_CLOEXEC)));
  if (!context) return last_error("fusectl");
  if (::syscall(SYS_fsconfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return last_error("fusectl");
  Fd folder(static_cast<int>(::syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC, 0)));
  if (!folder) return last_error("fusectl");
  return folder;
}

Result<Fd> open_abort(const std::string& number) {
  auto there = open_at(AT_FDCWD, "/sys/fs/fuse/connections/" + number + "/abort", O_WRONLY);
  if (there || there.error().errno_value() != ENOENT || ::geteuid() != 0) return there;
  TRY_ASSIGN(const Fd folder, own_fusectl());
  return open_at(folder.get(), number + "/abort", O_WRONLY);
}

}  // namespace

Result<> abort_connection(const std::string& device, const std::function<bool()>& is_still_it) {
  TRY_ASSIGN(const Fd file, open_abort(device.substr(device.find(':') + 1)));
  // once the connection has ended, writing to its file does nothing
  if (is_still_it && !is_still_it()) return Error(ENOENT);
  // the file has no offsets, so write_full cannot be used
  if (::write(file.get(), "1", 1) != 1) return last_error("the connection's abort");
  return success();
}

}  // namespace ckptfs::io

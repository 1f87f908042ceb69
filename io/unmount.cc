#include "io/unmount.h"

#include <sys/mount.h>
#include <unistd.h>

#include "io/process.h"

namespace ckptfs::io {

Result<> unmount(const std::string& mountpoint, Unmount how) {
  if (::geteuid() == 0) {
    const int flags = UMOUNT_NOFOLLOW | (how == Unmount::detach ? MNT_DETACH : 0);
    return ::umount2(mountpoint.c_str(), flags) == 0 ? success() : Result<>(last_error(mountpoint));
  }
  std::vector<std::string> command{kUserUnmounter, "-u"};
  if (how == Unmount::detach) command.emplace_back("-z");
  command.insert(command.end(), {"--", mountpoint});
  TRY_ASSIGN(const ProcessOutput output, run_process(command));
  if (output.status == 0) return success();
  const bool busy = output.err.find("busy") != std::string::npos;
  return Error(busy ? EBUSY : EPERM, output.err.substr(0, output.err.find('\n')));
}

}  // namespace ckptfs::io

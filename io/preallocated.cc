#include "io/preallocated.h"

#include <sys/ioctl.h>
#include <xfs/xfs.h>

#include "io/retry.h"

namespace ckptfs::io {

Result<> free_preallocated(int folder_fd, OpenFilesToo open_files) {
  xfs_fs_eofblocks request{};
  request.eof_version = XFS_EOFBLOCKS_VERSION;
  // Without SYNC the kernel skips files that are busy or open for writing.
  if (open_files == OpenFilesToo::yes) request.eof_flags = XFS_EOF_FLAGS_SYNC;
  if (retry_interrupted([&] { return ::ioctl(folder_fd, XFS_IOC_FREE_EOFBLOCKS, &request); }) == 0) return success();
  if (errno == ENOTTY) errno = EOPNOTSUPP;
  return last_error("freeing what was allocated ahead");
}

}  // namespace ckptfs::io

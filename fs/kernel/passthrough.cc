#include "fs/kernel/passthrough.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <cstdint>

#include "io/fault.h"
#include "io/fd.h"

namespace ckptfs::fs {

namespace {

// From <linux/fuse.h> of Linux 6.9. We build with older headers, which lack it.
struct BackingMap {
  int32_t fd;
  uint32_t flags;
  uint64_t padding;
};
static_assert(sizeof(BackingMap) == 16, "the kernel's struct fuse_backing_map");
constexpr unsigned kFuseDevice = 229;
constexpr unsigned long kBackingOpen = _IOW(kFuseDevice, 1, BackingMap);
constexpr unsigned long kBackingClose = _IOW(kFuseDevice, 2, uint32_t);

}  // namespace

Result<int> open_backing(int session_fd, int fd) {
  TRY(io::fault_point("fs.open_backing"));
  BackingMap map{fd, 0, 0};
  const int id = ::ioctl(session_fd, kBackingOpen, &map);
  if (id < 0) return last_error("passthrough: no backing id");
  if (id == 0) return Error(EPROTO, "passthrough: the kernel gave backing id 0");
  return id;
}

Result<> close_backing(int session_fd, int backing_id) {
  uint32_t id = static_cast<uint32_t>(backing_id);
  if (::ioctl(session_fd, kBackingClose, &id) < 0) return last_error("passthrough: closing a backing id");
  return success();
}

Result<> probe_passthrough(int session_fd, const std::string& file) {
  TRY_ASSIGN(const io::Fd fd, io::open_at(AT_FDCWD, file, O_RDONLY));
  TRY_ASSIGN(const int id, open_backing(session_fd, fd.get()));
  return close_backing(session_fd, id);
}

}  // namespace ckptfs::fs

#include "fs/kernel/kernel_channel.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
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

void KernelChannel::end_loop() const { fuse_session_exit(session_); }

void KernelChannel::attributes_changed(meta::InodeNumber inode) const {
  fuse_lowlevel_notify_inval_inode(session_, inode, -1, 0);
}

void KernelChannel::name_changed(meta::InodeNumber folder, const std::string& name) const {
  fuse_lowlevel_notify_inval_entry(session_, folder, name.c_str(), name.size());
}

void KernelChannel::leave_descriptors() const {
  const int kept = fuse_session_fd(session_);
  const auto told = io::read_file("/proc/thread-self/fdinfo/" + std::to_string(kept));
  if (!told || told.value().find("fuse_connection:") == std::string::npos) return;
  if (::close_range(kept + 1, ~0U, CLOSE_RANGE_UNSHARE) != 0) return;  // the table is still the process's
  if (kept > 0) ::close_range(0, kept - 1, 0);
}

Result<> KernelChannel::write_back(meta::InodeNumber inode) const {
  const int result = fuse_lowlevel_notify_inval_inode(session_, inode, 0, 0);
  if (result != 0 && result != -ENOENT) return Error(-result);
  return success();
}

Result<int> KernelChannel::open_backing(int descriptor) const {
  TRY(io::fault_point("fs.open_backing"));
  BackingMap map{descriptor, 0, 0};
  const int id = ::ioctl(fuse_session_fd(session_), kBackingOpen, &map);
  if (id < 0) return last_error("passthrough: no backing id");
  if (id == 0) return Error(EPROTO, "passthrough: the kernel gave backing id 0");
  return id;
}

Result<> KernelChannel::close_backing(int backing_id) const {
  uint32_t id = static_cast<uint32_t>(backing_id);
  if (::ioctl(fuse_session_fd(session_), kBackingClose, &id) < 0)
    return last_error("passthrough: closing a backing id");
  return success();
}

Result<> KernelChannel::probe_passthrough(const std::string& file) const {
  TRY_ASSIGN(const io::Fd fd, io::open_at(AT_FDCWD, file, O_RDONLY));
  TRY_ASSIGN(const int id, open_backing(fd.get()));
  return close_backing(id);
}

}  // namespace ckptfs::fs

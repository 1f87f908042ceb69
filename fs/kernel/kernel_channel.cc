#include "fs/kernel/kernel_channel.h"

#include <linux/close_range.h>
#include <unistd.h>

#include <cerrno>

#include "fs/kernel/passthrough.h"
#include "io/fd.h"

namespace ckptfs::fs {

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
  return fs::open_backing(fuse_session_fd(session_), descriptor);
}

Result<> KernelChannel::close_backing(int backing_id) const {
  return fs::close_backing(fuse_session_fd(session_), backing_id);
}

Result<> KernelChannel::probe_passthrough(const std::string& file) const {
  return fs::probe_passthrough(fuse_session_fd(session_), file);
}

}  // namespace ckptfs::fs

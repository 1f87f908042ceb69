// Attributes: getattr, setattr, statfs. The kernel checks permissions (default_permissions). What clears suid and
// sgid: fs/open/privileges.h.
#include <sys/stat.h>
#include <time.h>

#include <cerrno>

#include "fs/ops/operations.h"
#include "fs/ops/request.h"

namespace ckptfs::fs {

namespace {

void op_getattr(fuse_req_t req, fuse_ino_t inode, fuse_file_info*) {
  const Request request(req, Operation::getattr, inode);
  request.fs().privileges.clear_if_written(inode);
  const auto attributes = request.fs().tree.attributes(inode);
  if (!attributes) return request.error(attributes.error());
  request.attributes(attributes.value());
}

timespec now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return time;
}

meta::AttributeChange requested_change(const struct stat& wanted, int valid) {
  meta::AttributeChange change;
  if ((valid & FUSE_SET_ATTR_MODE) != 0) change.mode = wanted.st_mode & 07777u;
  if ((valid & FUSE_SET_ATTR_UID) != 0) change.uid = wanted.st_uid;
  if ((valid & FUSE_SET_ATTR_GID) != 0) change.gid = wanted.st_gid;
  if ((valid & FUSE_SET_ATTR_ATIME_NOW) != 0) {
    change.atime = now();
  } else if ((valid & FUSE_SET_ATTR_ATIME) != 0) {
    change.atime = wanted.st_atim;
  }
  if ((valid & FUSE_SET_ATTR_MTIME_NOW) != 0) {
    change.mtime = now();
  } else if ((valid & FUSE_SET_ATTR_MTIME) != 0) {
    change.mtime = wanted.st_mtim;
  }
  return change;
}

bool is_empty(const meta::AttributeChange& change) {
  return !change.mode && !change.uid && !change.gid && !change.atime && !change.mtime;
}

Result<meta::Attributes> set_attributes(Filesystem& fs, meta::InodeNumber inode, const meta::Caller& caller,
                                        const struct stat& wanted, int valid) {
  if ((valid & FUSE_SET_ATTR_SIZE) != 0) {
    fs.files.changes(inode);
    const auto truncated = fs.tree.truncate(inode, static_cast<uint64_t>(wanted.st_size));
    if (!truncated) {
      if (truncated.error().errno_value() == ENOSPC)
        fs.write_errors.failed(inode, WriteFailure::truncate, truncated.error());
      return truncated.error();
    }
    fs.files.changes(inode);  // for opens that came meanwhile
    fs.writers.note_written(inode, caller, true);
    if (wanted.st_size == 0) fs.write_errors.clear(inode);
  }
  meta::AttributeChange change = requested_change(wanted, valid);
  const bool clears = (valid & FUSE_SET_ATTR_SIZE) != 0 && (valid & FUSE_SET_ATTR_KILL_SUID) != 0;
  TRY(fs.privileges.clear_by_setattr(inode, caller, clears, change));
  if (!is_empty(change)) TRY(fs.privileges.change_attributes(inode, change));
  return fs.tree.attributes(inode);
}

void op_setattr(fuse_req_t req, fuse_ino_t inode, struct stat* wanted, int valid, fuse_file_info*) {
  const Request request(req, Operation::setattr, inode);
  const auto work = [request, wanted = *wanted, valid] {
    const auto attributes = set_attributes(request.fs(), request.inode(), request.caller(), wanted, valid);
    if (!attributes) return request.error(attributes.error());
    request.attributes(attributes.value());
  };
  if ((valid & FUSE_SET_ATTR_SIZE) != 0) {
    through_gate(request.fs(), inode, work);
  } else {
    work();
  }
}

void op_statfs(fuse_req_t req, fuse_ino_t inode) {
  const Request request(req, Operation::statfs, inode);
  constexpr uint64_t kBlock = 4096;
  const meta::SpaceReport space = request.fs().store.space();
  struct statvfs status {};
  status.f_bsize = kBlock;
  status.f_frsize = kBlock;
  status.f_blocks = space.total / kBlock;
  status.f_bfree = space.free / kBlock;
  status.f_bavail = space.free / kBlock;
  status.f_ffree = space.inodes_free;
  status.f_favail = space.inodes_free;
  status.f_files = space.inodes_free + request.fs().files.remembered_count();
  status.f_namemax = 255;
  request.answer(fuse_reply_statfs, &status);
}

}  // namespace

void add_attribute_operations(fuse_lowlevel_ops& ops) {
  ops.getattr = op_getattr;
  ops.setattr = op_setattr;
  ops.statfs = op_statfs;
}

}  // namespace ckptfs::fs

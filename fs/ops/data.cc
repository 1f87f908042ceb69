// Reads and writes that come through the daemon. Fallocate and lseek, which come here in any mode.
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "fs/kernel/request_loop.h"
#include "fs/ops/operations.h"
#include "fs/ops/request.h"
#include "io/fault.h"
#include "io/mutex.h"
#include "io/retry.h"

namespace ckptfs::fs {

namespace {

void op_read(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* info) {
  const Request request(req, Operation::read, inode);
  const Handle& handle = Handles<Handle>::get(info->fh);
  if (!handle.data) return request.error(Error(EIO, "a read of a passthrough open came to the daemon"));
  const auto data = handle.data->read(size, offset);
  if (!data) {
    add(request.fs().counters.read_errors);
    return request.error(data.error());
  }
  request.data(data.value());
}

DataPath::Written write(const Handle& handle, std::span<const std::byte> data, off_t offset) {
  if (handle.dedup) return handle.dedup->write(data, offset, *handle.data);
  return handle.data->write(data, offset);
}

// For RWF_DSYNC and RWF_SYNC, if the handle does not sync by itself: makes the data and the name durable, as fdatasync
// does.
Result<> sync_write(Filesystem& fs, const Handle& handle) {
  TRY(fs.file_sync.sync_data(*handle.file, handle.descriptor));
  return fs.tree.sync();
}

// A write through a descriptor that syncs may return the error of a failed write-back. The kernel tells nobody else of
// that error, so it is recorded here.
void note_failed_write(Filesystem& fs, meta::InodeNumber inode, const Handle& handle, const Error& error) {
  fs.write_errors.failed(inode, WriteFailure::write, error);
  if (!handle.syncs || error.errno_value() != EIO) return;
  if (const auto record = fs.tree.inode(inode)) {
    fs.tree.write_back_failed(inode, record.value(), handle.descriptor, error);
  }
}

void op_write(fuse_req_t req, fuse_ino_t inode, const char* data, size_t, off_t offset, fuse_file_info* info) {
  const Request request(req, Operation::write, inode);
  const Handle& handle = Handles<Handle>::get(info->fh);
  if (!handle.data) return request.error(Error(EIO, "a write of a passthrough open came to the daemon"));
  Privileges& privileges = request.fs().privileges;
  if (const auto cleared = privileges.before_write(inode, request.caller(), handle.had_privileges); !cleared) {
    return request.error(cleared.error());
  }
  const DataPath::Written written = write(handle, RequestLoop::payload_of(data), offset);
  if (written.error) note_failed_write(request.fs(), inode, handle, *written.error);
  if (written.error && written.bytes == 0) return request.logged_error(*written.error);
  if ((info->flags & (O_DSYNC | O_SYNC)) != 0 && !handle.syncs) {
    if (const auto synced = sync_write(request.fs(), handle); !synced) return request.logged_error(synced.error());
  }
  request.answer(fuse_reply_write, written.bytes);
}

constexpr bool is_known_fallocate(int mode) {
  constexpr int kKeep = FALLOC_FL_KEEP_SIZE;
  return mode == 0 || mode == kKeep || mode == (FALLOC_FL_PUNCH_HOLE | kKeep) || mode == FALLOC_FL_ZERO_RANGE ||
         mode == (FALLOC_FL_ZERO_RANGE | kKeep);
}

// An allocation must leave free what live swap files reserve. Only what the file lacks for its new length is counted as
// allocated, although the blocks that it has may lie outside the range.
Result<> check_room(Filesystem& fs, meta::InodeNumber inode, int blob, off_t offset, off_t length) {
  TRY_ASSIGN(const struct stat st, io::stat_fd(blob));
  const off_t missing = std::min(length, offset + length - st.st_blocks * 512);
  return missing > 0 ? fs.tree.check_room(inode, static_cast<uint64_t>(missing)) : success();
}

Result<> allocate(Filesystem& fs, meta::InodeNumber inode, int mode, off_t offset, off_t length) {
  TRY(io::fault_point("fs.fallocate"));
  if ((mode & FALLOC_FL_PUNCH_HOLE) == 0) fs.files.allocates(inode);
  // Opened for this call only. While no open writes through the daemon, the daemon has nothing open for writing, so
  // that lease probes are right.
  TRY_ASSIGN(const io::Fd blob, fs.tree.open_blob(inode, O_WRONLY));
  const io::MutexLock lock(fs.allocating);
  if ((mode & FALLOC_FL_PUNCH_HOLE) == 0) TRY(check_room(fs, inode, blob.get(), offset, length));
  if (io::retry_interrupted([&] { return ::fallocate(blob.get(), mode, offset, length); }) != 0) {
    return last_error("fallocate");
  }
  return success();
}

void op_fallocate(fuse_req_t req, fuse_ino_t inode, int mode, off_t offset, off_t length, fuse_file_info*) {
  const Request request(req, Operation::fallocate, inode);
  if (!is_known_fallocate(mode)) return request.error(EOPNOTSUPP);
  through_gate(request.fs(), inode, [request, mode, offset, length] {
    const auto allocated = allocate(request.fs(), request.inode(), mode, offset, length);
    if (!allocated && (allocated.error().errno_value() == ENOSPC || allocated.error().errno_value() == EIO)) {
      request.fs().write_errors.failed(request.inode(), WriteFailure::fallocate, allocated.error());
      return request.logged_error(allocated.error());
    }
    request.result(allocated ? request.fs().privileges.clear(request.inode(), request.caller()) : allocated);
  });
}

void op_lseek(fuse_req_t req, fuse_ino_t inode, off_t offset, int whence, fuse_file_info* info) {
  const Request request(req, Operation::lseek, inode);
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return request.error(EINVAL);
  const off_t found = ::lseek(Handles<Handle>::get(info->fh).descriptor, offset, whence);
  if (found < 0) return request.error(last_error("lseek"));
  request.answer(fuse_reply_lseek, found);
}

// Python's open() calls TCGETS on every file.
void op_ioctl(fuse_req_t req, fuse_ino_t inode, unsigned, void*, fuse_file_info*, unsigned, const void*, size_t,
              size_t) {
  Request(req, Operation::ioctl, inode).error(ENOTTY);
}

}  // namespace

void add_data_operations(fuse_lowlevel_ops& ops) {
  ops.read = op_read;
  ops.write = op_write;
  ops.fallocate = op_fallocate;
  ops.lseek = op_lseek;
  ops.ioctl = op_ioctl;
}

}  // namespace ckptfs::fs

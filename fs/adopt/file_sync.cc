#include "fs/adopt/file_sync.h"

#include <fcntl.h>

#include "io/fault.h"

namespace ckptfs::fs {

Result<> FileSync::sync_data(OpenFile& file, int descriptor) {
  Result<> synced = tree_.sync_file(file.inode, descriptor);
  if (!synced) {
    file.errors.record(synced.error().errno_value());
    write_errors_.failed(file.inode, WriteFailure::fdatasync, synced.error());
  }
  return synced;
}

Result<> FileSync::sync_file(meta::InodeNumber inode) {
  TRY_ASSIGN(const io::Fd blob, tree_.open_blob(inode, O_RDONLY));
  const auto sync = [&]() -> Result<> {
    Result<> synced = io::fault_point("fs.sync_file");
    if (synced) synced = tree_.sync_file(inode, blob.get());
    if (!synced) {
      files_.record_error(inode, synced.error().errno_value());
      write_errors_.failed(inode, WriteFailure::fdatasync, synced.error());
    }
    return synced;
  };
  const auto durable = clones_.make_durable(inode, blob.get(), sync);
  const auto done = durable ? sync() : durable;
  if (done) return success();
  return with_name(tree_.path_of(inode), done.error());
}

}  // namespace ckptfs::fs

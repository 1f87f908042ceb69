#include "fs/open/file_sync.h"

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
  Result<> synced = io::fault_point("fs.sync_file");
  if (synced) synced = tree_.sync_file(inode, blob.get());
  if (synced) return success();
  files_.record_error(inode, synced.error().errno_value());
  write_errors_.failed(inode, WriteFailure::fdatasync, synced.error());
  return with_name(tree_.path_of(inode), synced.error());
}

}  // namespace ckptfs::fs

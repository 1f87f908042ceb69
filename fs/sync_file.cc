#include "fs/sync_file.h"

#include <fcntl.h>

#include "fs/filesystem.h"
#include "io/fault.h"

namespace ckptfs::fs {

Result<> sync_file(Filesystem& fs, meta::InodeNumber inode) {
  TRY_ASSIGN(const io::Fd blob, fs.tree.open_blob(inode, O_RDONLY));
  const auto sync = [&]() -> Result<> {
    Result<> synced = io::fault_point("fs.sync_file");
    if (synced) synced = fs.tree.sync_file(inode, blob.get());
    if (!synced) {
      fs.files.record_error(inode, synced.error().errno_value());
      fs.write_failed(inode, WriteFailure::fdatasync, synced.error());
    }
    return synced;
  };
  const auto settled = fs.adoptions.settle(inode, blob.get(), sync);
  const auto done = settled ? sync() : settled;
  if (done) return success();
  return Error(done.error().errno_value(), fs.tree.path_of(inode) + ": " + done.error().message());
}

}  // namespace ckptfs::fs

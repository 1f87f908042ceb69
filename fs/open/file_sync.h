// Syncs the data of files. A failure is counted, logged, and kept for user.ckptfs.write_error and for the handles of
// the file that are open now.
//
// Thread safety: all of it; takes no lock of its own.
#pragma once

#include "fs/open/open_files.h"
#include "fs/open/write_errors.h"
#include "io/result.h"
#include "meta/tree/tree.h"
#include "meta/types.h"

namespace ckptfs::fs {

class FileSync {
 public:
  FileSync(meta::Tree& tree, OpenFileTable& files, WriteErrors& write_errors)
      : tree_(tree), files_(files), write_errors_(write_errors) {}

  // fdatasync of an open file's blob through its shared descriptor.
  Result<> sync_data(OpenFile& file, int descriptor);
  // Does what an fsync of the file does, for a file that the daemon makes durable of its own accord. When it returns,
  // the file's data is on the disk. Its name is when the tree is synced.
  Result<> sync_file(meta::InodeNumber inode);

 private:
  meta::Tree& tree_;
  OpenFileTable& files_;
  WriteErrors& write_errors_;
};

}  // namespace ckptfs::fs

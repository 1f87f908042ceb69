#include "fs/open/mapped_files.h"

#include <fcntl.h>

#include "io/lease.h"

namespace ckptfs::fs {

// Another open for writing looks like a mapping. Then the file is probed once more than needed.
void MappedFiles::closed(meta::InodeNumber inode, int descriptor) {
  const auto written = io::has_writer(descriptor);
  if (written && !written.value()) return;
  const io::MutexLock lock(mutex_);
  files_.insert(inode);
  count_ = files_.size();
}

bool MappedFiles::may_have_changed(meta::InodeNumber inode, const meta::InodeRecord& record) {
  if (count_ == 0) return false;
  {
    const io::MutexLock lock(mutex_);
    if (!files_.contains(inode)) return false;
  }
  const auto blob = tree_.open_blob(inode, record, O_RDONLY);
  const auto written = blob ? io::has_writer(blob.value().get()) : Result<bool>(false);
  if (written && !written.value()) {  // attributes that are read from now on stay right
    const io::MutexLock lock(mutex_);
    files_.erase(inode);
    count_ = files_.size();
  }
  return true;
}

}  // namespace ckptfs::fs

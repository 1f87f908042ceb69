#include "meta/tree/file_health.h"

#include <fcntl.h>

#include "io/lease.h"

namespace ckptfs::meta {

bool FileHealth::is_damaged(InodeNumber number) const {
  const io::MutexLock lock(mutex_);
  return damaged_.contains(number);
}

void FileHealth::note_damaged(InodeNumber number) {
  const io::MutexLock lock(mutex_);
  damaged_.insert(number);
}

std::vector<InodeNumber> FileHealth::damaged_files() const {
  std::vector<InodeNumber> files;
  {
    const io::MutexLock lock(mutex_);
    files.assign(damaged_.begin(), damaged_.end());
  }
  std::erase_if(files, [this](InodeNumber number) {
    const auto record = index_.inode(number);
    return record ? record.value().nlink == 0 : record.error().errno_value() == ENOENT;
  });
  return files;
}

void FileHealth::set_inspected(const std::vector<InodeNumber>& survivors_write) {
  {
    const io::MutexLock lock(mutex_);
    recovered_.insert(survivors_write.begin(), survivors_write.end());
  }
  inspected_.store(true, std::memory_order_release);
}

bool FileHealth::is_recovered(InodeNumber number) const {
  if (!is_inspected()) return number < first_new_;
  {
    const io::MutexLock lock(mutex_);
    if (recovered_.empty() || !recovered_.contains(number)) return false;
  }
  const auto record = index_.inode(number);
  if (record) {
    const auto fd = blobs_.open(record.value().blob, O_RDONLY);
    if (fd) {
      const auto busy = io::has_writer(fd.value().get());
      if (!busy || busy.value()) return true;
    }
  }
  const io::MutexLock lock(mutex_);
  recovered_.erase(number);
  return false;
}

}  // namespace ckptfs::meta

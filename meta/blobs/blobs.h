// The folder blobs/: one backing file a blob, named by its number in 16 hex digits, mode 0600, the daemon's own.
// Thread safety: all of it; it keeps the folder's descriptor, which its owner outlives it with.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "io/fd.h"
#include "meta/types.h"

namespace ckptfs::meta {

class Blobs {
 public:
  explicit Blobs(int folder_fd) : folder_fd_(folder_fd) {}

  static std::string name(BlobNumber number);
  static std::optional<BlobNumber> parse_name(const std::string& name);

  // Inodes of the file system below that no blob takes: the index makes files for whatever it records, removals, too.
  static constexpr uint64_t kInodeReserve = 1024;
  // EEXIST where the number was used before. ENOSPC, in words: only the reserve is left.
  Result<io::Fd> create(BlobNumber number) const;  // O_RDWR
  Result<io::Fd> open(BlobNumber number, int flags) const;
  Result<struct stat> stat(BlobNumber number) const;
  // Absent already is success.
  Result<> remove(BlobNumber number) const;
  Result<> set_times(BlobNumber number, const timespec& atime, const timespec& mtime) const;
  // Of the newest index that has used this folder (Index::generation); 0: not known. Kept as an xattr of the folder.
  Result<uint64_t> generation() const;
  // Durable when it returns. Where the file system has no xattrs nothing is kept.
  Result<> set_generation(uint64_t generation) const;
  // All numbers in the folder; other names are left alone and not listed.
  Result<std::vector<BlobNumber>> list() const;

  int folder_fd() const { return folder_fd_; }

 private:
  Result<> refuse_without_inodes() const;

  const int folder_fd_;
  mutable std::atomic<int64_t> unasked_{0};  // so many more may be created before the file system is asked again
};

}  // namespace ckptfs::meta

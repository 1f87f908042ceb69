#include "meta/space.h"

#include <sys/statvfs.h>

#include <algorithm>

#include "io/preallocated.h"

namespace ckptfs::meta {

Result<SpaceReport> Space::report() const {
  struct statvfs fs {};
  if (::fstatvfs(folder_fd_, &fs) != 0) return last_error("the store's free space");
  SpaceReport report;
  report.total = uint64_t{fs.f_blocks} * fs.f_frsize;
  report.raw_free = uint64_t{fs.f_bavail} * fs.f_frsize;
  report.reserve = std::max(uint64_t{256} << 20, report.total / 50);
  report.free = report.raw_free > report.reserve ? report.raw_free - report.reserve : 0;
  report.owed = owed();
  report.inodes = fs.f_files;
  report.inodes_free = fs.f_favail;
  return report;
}

Result<> Space::free_preallocated(io::OpenFilesToo open_files) const {
  auto freed = io::free_preallocated(folder_fd_, open_files);
  if (!freed && freed.error().errno_value() == EOPNOTSUPP) return success();
  return freed;
}

}  // namespace ckptfs::meta

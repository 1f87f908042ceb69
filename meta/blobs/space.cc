#include "meta/blobs/space.h"

#include <sys/statvfs.h>

#include <algorithm>

#include "io/clone.h"
#include "io/preallocated.h"
#include "meta/blobs/blobs.h"

namespace ckptfs::meta {

namespace {

uint64_t held_by(const struct stat& file) {
  return std::min(static_cast<uint64_t>(file.st_size), static_cast<uint64_t>(file.st_blocks) * 512);
}

}  // namespace

uint32_t cow_unit(const struct stat& file) {
  constexpr uint32_t kBlock = 4096;
  const auto size = static_cast<uint64_t>(file.st_size);
  return held_by(file) < size ? kBlock : io::cow_extent_hint(size);
}

uint64_t cow_reserve_of_clone(const struct stat& file) {
  const uint64_t unit = cow_unit(file);
  return (held_by(file) + unit - 1) / unit * unit;
}

// The least that can be written. The next block that XFS allocates may be any free one, also one that a sparse image
// lacks. If the host has room for all blocks that the image lacks, everything that is free in the image can be written.
// If not, only as much as the host has free.
Result<uint64_t> Space::least_free(uint64_t free) const {
  if (!image_) return free;
  TRY_ASSIGN(const struct stat image, io::stat_fd(image_.get()));
  struct statvfs host {};
  if (::fstatvfs(image_.get(), &host) != 0) return last_error("the free space under the image");
  const auto size = static_cast<uint64_t>(image.st_size), present = static_cast<uint64_t>(image.st_blocks) * 512;
  const uint64_t missing = size > present ? size - present : 0;
  const uint64_t host_free = uint64_t{host.f_bavail} * host.f_frsize;
  return host_free >= missing ? free : std::min(free, host_free);
}

Result<SpaceReport> Space::report() const {
  struct statvfs fs {};
  if (::fstatvfs(folder_fd_, &fs) != 0) return last_error("the store's free space");
  SpaceReport report;
  report.total = uint64_t{fs.f_blocks} * fs.f_frsize;
  TRY_ASSIGN(report.raw_free, least_free(uint64_t{fs.f_bavail} * fs.f_frsize));
  report.reserve = std::max(uint64_t{256} << 20, report.total / 50);
  report.free = report.raw_free > report.reserve ? report.raw_free - report.reserve : 0;
  report.cow_reserve = cow_reserve();
  report.inodes = fs.f_files;
  report.inodes_free = fs.f_favail - std::min<uint64_t>(fs.f_favail, Blobs::kInodeReserve);
  return report;
}

Result<> Space::free_preallocated(io::OpenFilesToo open_files) const {
  auto freed = io::free_preallocated(folder_fd_, open_files);
  if (!freed && freed.error().errno_value() == EOPNOTSUPP) return success();
  return freed;
}

}  // namespace ckptfs::meta

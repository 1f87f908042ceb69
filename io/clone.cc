#include "io/clone.h"

#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "io/retry.h"

namespace ckptfs::io {

Result<> clone(int from, int to) {
  if (retry_interrupted([&] { return ::ioctl(to, FICLONE, from); }) != 0) return last_error("clone");
  return success();
}

Result<> clone_range(int from, off_t from_offset, int to, off_t to_offset, uint64_t length) {
  struct file_clone_range range {};
  range.src_fd = from;
  range.src_offset = static_cast<uint64_t>(from_offset);
  range.src_length = length;
  range.dest_offset = static_cast<uint64_t>(to_offset);
  if (retry_interrupted([&] { return ::ioctl(to, FICLONERANGE, &range); }) != 0) return last_error("clone of a range");
  return success();
}

Result<uint64_t> dedupe_range(int from, off_t from_offset, int to, off_t to_offset, uint64_t length) {
  constexpr uint64_t kLargest = uint64_t{1} << 30;
  alignas(file_dedupe_range) std::byte memory[sizeof(file_dedupe_range) + sizeof(file_dedupe_range_info)];
  auto* request = reinterpret_cast<file_dedupe_range*>(memory);
  for (;;) {
    std::memset(memory, 0, sizeof memory);
    request->src_offset = static_cast<uint64_t>(from_offset);
    request->src_length = std::min(length, kLargest);
    request->dest_count = 1;
    file_dedupe_range_info& info = request->info[0];
    info.dest_fd = to;
    info.dest_offset = static_cast<uint64_t>(to_offset);
    if (retry_interrupted([&] { return ::ioctl(from, FIDEDUPERANGE, request); }) != 0) return last_error("dedupe");
    if (info.status == FILE_DEDUPE_RANGE_DIFFERS) return uint64_t{0};
    if (info.status == FILE_DEDUPE_RANGE_SAME) return std::min<uint64_t>(info.bytes_deduped, request->src_length);
    if (info.status == -EINTR) continue;
    errno = -info.status;
    return last_error("dedupe");
  }
}

uint32_t cow_extent_hint(uint64_t size) {
  constexpr uint64_t kSmallest = uint64_t{128} << 10;
  constexpr uint64_t kLargest = uint64_t{16} << 20;
  return static_cast<uint32_t>(std::bit_ceil(std::clamp(size, kSmallest, kLargest)));
}

Result<> set_cow_extent_hint(int fd, uint32_t bytes) {
  struct fsxattr attributes {};
  const auto failed = [](const char* what) {
    if (errno == ENOTTY) errno = EOPNOTSUPP;
    return last_error(what);
  };
  if (retry_interrupted([&] { return ::ioctl(fd, FS_IOC_FSGETXATTR, &attributes); }) != 0) {
    return failed("copy-on-write extent hint, reading");
  }
  if ((attributes.fsx_xflags & FS_XFLAG_COWEXTSIZE) != 0 && attributes.fsx_cowextsize == bytes) return success();
  attributes.fsx_xflags |= FS_XFLAG_COWEXTSIZE;
  attributes.fsx_cowextsize = bytes;
  if (retry_interrupted([&] { return ::ioctl(fd, FS_IOC_FSSETXATTR, &attributes); }) != 0) {
    return failed("copy-on-write extent hint");
  }
  return success();
}

Result<uint32_t> get_cow_extent_hint(int fd) {
  struct fsxattr attributes {};
  if (retry_interrupted([&] { return ::ioctl(fd, FS_IOC_FSGETXATTR, &attributes); }) != 0) {
    if (errno == ENOTTY) errno = EOPNOTSUPP;
    return last_error("copy-on-write extent hint, reading");
  }
  return (attributes.fsx_xflags & FS_XFLAG_COWEXTSIZE) != 0 ? attributes.fsx_cowextsize : 0;
}

}  // namespace ckptfs::io

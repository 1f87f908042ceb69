// Shares blocks between files of one file system (XFS or btrfs with reflink). Stateless; any thread.
#pragma once

#include <cstdint>

#include "io/fd.h"

namespace ckptfs::io {

// FICLONE: `to` gets the content of `from`, atomically.
Result<> clone(int from, int to);
// FICLONERANGE. Offsets and length must be multiples of the file system's block size, unless the range ends at the end
// of `from`. A length of 0 means up to the end of `from`.
Result<> clone_range(int from, off_t from_offset, int to, off_t to_offset, uint64_t length);
// FIDEDUPERANGE: the kernel compares the two ranges and shares the blocks if they are equal. Returns the number of
// bytes that are shared now, or 0 if the ranges differ. It may be less than `length`: one call handles at most 1 GiB.
Result<uint64_t> dedupe_range(int from, off_t from_offset, int to, off_t to_offset, uint64_t length);

// The copy-on-write extent hint for a file of `size` bytes: size rounded up to a power of two, between 128 KiB and
// 16 MiB.
uint32_t cow_extent_hint(uint64_t size);
// Sets the hint (FS_IOC_FSSETXATTR). Fails with EOPNOTSUPP where the file system has no such hint.
Result<> set_cow_extent_hint(int fd, uint32_t bytes);
// Returns the hint that is set, or 0 if none is.
Result<uint32_t> get_cow_extent_hint(int fd);

}  // namespace ckptfs::io

// Sharing of blocks between files of one file system (XFS or btrfs with reflink). Stateless; any thread.
#pragma once

#include <cstdint>

#include "io/fd.h"

namespace ckptfs::io {

// FICLONE: `to` becomes, at one point in time, what `from` holds.
Result<> clone(int from, int to);
// FICLONERANGE. Offsets and length are multiples of the file system's block, or the range ends at `from`'s end.
// length 0 means to the end of `from`.
Result<> clone_range(int from, off_t from_offset, int to, off_t to_offset, uint64_t length);
// FIDEDUPERANGE: the kernel compares and shares if equal. The bytes that are now shared (0: they differ), at most
// `length`; may be short (1 GiB a call).
Result<uint64_t> dedupe_range(int from, off_t from_offset, int to, off_t to_offset, uint64_t length);

// The copy-on-write extent hint for a file of `size` bytes: size rounded up to a power of two, between 128 KiB and
// 16 MiB.
uint32_t cow_extent_hint(uint64_t size);
// Sets it (FS_IOC_FSSETXATTR). EOPNOTSUPP where the file system has none.
Result<> set_cow_extent_hint(int fd, uint32_t bytes);
// What is set; 0 where none is.
Result<uint32_t> get_cow_extent_hint(int fd);

}  // namespace ckptfs::io

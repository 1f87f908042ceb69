// Where on the disk the blocks of a file lie, as FIEMAP tells. Stateless; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "io/result.h"

namespace ckptfs::io {

struct Extent {
  uint64_t logical = 0;   // offset in the file, bytes
  uint64_t physical = 0;  // offset on the device, bytes; meaningless unless `located`
  uint64_t length = 0;
  bool shared = false;   // another file, or this one elsewhere, has these blocks too
  bool located = false;  // false: has no blocks (written in memory only, or kept in the inode)
};

enum class WriteBack : bool { no, first };

// Calls `visit` for each extent of the file, in ascending order; an error from it ends the walk. Holes are in none.
// WriteBack::first writes the file's dirty pages before: without it shared blocks under dirty pages still count as
// shared, and new ones may not be located.
Result<> for_each_extent(int fd, WriteBack write_back, const std::function<Result<>(const Extent&)>& visit);

// Blocks of the file after its dirty pages have been written.
struct ExtentSummary {
  uint64_t extents = 0;
  uint64_t shared_bytes = 0;  // in extents flagged SHARED
  uint64_t mapped_bytes = 0;  // in all extents; what is missing up to the file's size are holes
};
Result<ExtentSummary> summarize_extents(int fd);

// Bytes that overwriting all of the file's first `size` bytes would newly allocate: shared or missing, counted in whole
// aligned `unit`s (so at most `size` rounded up). What is allocated but not written yet (fallocate) owes nothing. Waits
// for no write-back: shared blocks under dirty pages still count, never the other way; exact after fdatasync.
Result<uint64_t> owed_bytes(int fd, uint64_t size, uint64_t unit);

struct Range {
  uint64_t offset = 0;
  uint64_t length = 0;
};
// What of the first `length` bytes two files do not have in common on the disk: neither the same blocks at the same
// offset, nor a hole in both. Ascending; neighbours are joined. Dirty pages are written first.
Result<std::vector<Range>> unshared_ranges(int a, int b, uint64_t length);

}  // namespace ckptfs::io

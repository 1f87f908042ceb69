// Tells where the blocks of a file are on the disk (FIEMAP). Stateless; any thread.
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
  bool shared = false;   // another file, or another range of this file, uses these blocks too
  bool located = false;  // false if it has no place on the disk: it is not written yet, or is kept in the inode
};

enum class WriteBack : bool { no, first };

// Calls `visit` for each extent of the file, in ascending order. Holes are skipped. An error from `visit` ends the
// walk. WriteBack::first writes the file's dirty pages first. Without it, shared blocks below dirty pages are still
// reported as shared, and new blocks may have no place yet.
Result<> for_each_extent(int fd, WriteBack write_back, const std::function<Result<>(const Extent&)>& visit);

// What FIEMAP reports of a file after its dirty pages are written.
struct ExtentSummary {
  uint64_t extents = 0;
  uint64_t shared_bytes = 0;  // in extents flagged SHARED
  uint64_t mapped_bytes = 0;  // in all extents; the rest of the file is holes
};
Result<ExtentSummary> summarize_extents(int fd);

// Returns how many bytes overwriting what the first `size` bytes of the file hold would newly allocate: those in shared
// blocks, counted in whole aligned `unit`s (so at most `size` rounded up). Holes hold nothing, and do not count, nor do
// blocks that are allocated but not written yet (fallocate). It does not wait for write-back, so shared blocks below
// dirty pages still count. The result is therefore never too low, and it is exact after fdatasync.
Result<uint64_t> overwrite_allocation(int fd, uint64_t size, uint64_t unit);

struct Range {
  uint64_t offset = 0;
  uint64_t length = 0;
};
// Returns the ranges of the first `length` bytes in which the two files share nothing: they have different blocks
// there, or only one of them has a hole. The ranges ascend, and adjacent ones are joined. Dirty pages are written
// first.
Result<std::vector<Range>> unshared_ranges(int a, int b, uint64_t length);

}  // namespace ckptfs::io

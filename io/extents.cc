#include "io/extents.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "io/retry.h"

namespace ckptfs::io {

namespace {

// Counts the units that ranges touch, each unit once. The ranges must come in ascending order.
class UnitCounter {
 public:
  explicit UnitCounter(uint64_t unit) : unit_(unit) {}

  void touch(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    const uint64_t first = std::max(begin / unit_, next_);
    const uint64_t beyond = (end - 1) / unit_ + 1;
    if (first >= beyond) return;
    count_ += beyond - first;
    next_ = beyond;
  }
  uint64_t bytes() const { return count_ * unit_; }

 private:
  uint64_t unit_;
  uint64_t next_ = 0;  // units below this one are counted, or can no longer be
  uint64_t count_ = 0;
};

}  // namespace

Result<> for_each_extent(int fd, WriteBack write_back, const std::function<Result<>(const Extent&)>& visit) {
  constexpr uint32_t kPage = 256;
  constexpr uint32_t kNowhere = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_DATA_INLINE;
  constexpr size_t kBytes = sizeof(fiemap) + kPage * sizeof(fiemap_extent);
  const std::unique_ptr<uint64_t[]> memory(new (std::nothrow) uint64_t[kBytes / sizeof(uint64_t)]);
  if (!memory) return Error(ENOMEM);
  static_assert(kBytes % sizeof(uint64_t) == 0 && alignof(fiemap) <= alignof(uint64_t));
  auto* map = reinterpret_cast<fiemap*>(memory.get());
  uint64_t position = 0;
  for (;;) {
    std::memset(memory.get(), 0, kBytes);
    map->fm_start = position;
    map->fm_length = FIEMAP_MAX_OFFSET - position;
    map->fm_flags = write_back == WriteBack::first ? FIEMAP_FLAG_SYNC : 0;
    map->fm_extent_count = kPage;
    if (retry_interrupted([&] { return ::ioctl(fd, FS_IOC_FIEMAP, map); }) != 0) return last_error("FIEMAP");
    for (const fiemap_extent* extent = map->fm_extents; extent != map->fm_extents + map->fm_mapped_extents; ++extent) {
      TRY(visit({extent->fe_logical, extent->fe_physical, extent->fe_length,
                 (extent->fe_flags & FIEMAP_EXTENT_SHARED) != 0, (extent->fe_flags & kNowhere) == 0}));
      if ((extent->fe_flags & FIEMAP_EXTENT_LAST) != 0) return success();
      position = extent->fe_logical + extent->fe_length;
    }
    if (map->fm_mapped_extents < kPage) return success();
  }
}

Result<ExtentSummary> summarize_extents(int fd) {
  ExtentSummary summary;
  TRY(for_each_extent(fd, WriteBack::first, [&](const Extent& extent) -> Result<> {
    ++summary.extents;
    summary.mapped_bytes += extent.length;
    if (extent.shared) summary.shared_bytes += extent.length;
    return success();
  }));
  return summary;
}

Result<uint64_t> overwrite_allocation(int fd, uint64_t size, uint64_t unit) {
  if (unit == 0) return Error(EINVAL, "the allocation is counted in units of at least one byte");
  UnitCounter allocated(unit);
  TRY(for_each_extent(fd, WriteBack::no, [&](const Extent& extent) -> Result<> {
    if (extent.shared) allocated.touch(std::min(extent.logical, size), std::min(extent.logical + extent.length, size));
    return success();
  }));
  return allocated.bytes();
}

namespace {

// Iterates over a file's extents. The holes between them appear as pieces with hole = true.
class Blocks {
 public:
  static Result<Blocks> of(int fd) {
    Blocks blocks;
    TRY(for_each_extent(fd, WriteBack::first, [&](const Extent& extent) -> Result<> {
      blocks.extents_.push_back(extent);
      return success();
    }));
    return blocks;
  }

  struct Piece {
    uint64_t end = UINT64_MAX;  // the end of this extent or hole
    bool hole = true;
    bool located = false;
    uint64_t physical = 0;  // where `offset` is on the device
  };
  // Offsets must ascend from call to call.
  Piece at(uint64_t offset) {
    while (next_ < extents_.size() && extents_[next_].logical + extents_[next_].length <= offset) ++next_;
    if (next_ == extents_.size()) return {};
    const Extent& extent = extents_[next_];
    if (offset < extent.logical) return {.end = extent.logical};
    return {extent.logical + extent.length, false, extent.located, extent.physical + (offset - extent.logical)};
  }

 private:
  std::vector<Extent> extents_;
  size_t next_ = 0;
};

}  // namespace

Result<std::vector<Range>> unshared_ranges(int a, int b, uint64_t length) {
  TRY_ASSIGN(Blocks first, Blocks::of(a));
  TRY_ASSIGN(Blocks second, Blocks::of(b));
  std::vector<Range> ranges;
  for (uint64_t offset = 0; offset < length;) {
    const Blocks::Piece in_a = first.at(offset);
    const Blocks::Piece in_b = second.at(offset);
    const uint64_t end = std::min({in_a.end, in_b.end, length});
    const bool same_blocks = in_a.located && in_b.located && in_a.physical == in_b.physical;
    if (!same_blocks && !(in_a.hole && in_b.hole)) {
      if (!ranges.empty() && ranges.back().offset + ranges.back().length == offset) {
        ranges.back().length += end - offset;
      } else {
        ranges.push_back({offset, end - offset});
      }
    }
    offset = end;
  }
  return ranges;
}

}  // namespace ckptfs::io

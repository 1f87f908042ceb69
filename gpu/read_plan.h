// Which reads bring what is wanted of some files to where it belongs: wanted ranges, in any order, become reads of
// whole aligned blocks, in the order of the disk, each at most a slot long, with what lies close together read as one.
// Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/result.h"

namespace ckptfs::gpu {

// Bytes of a file, and where they belong. Several may want the same bytes.
struct Wanted {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::byte* target = nullptr;
};

// One read, and what of it goes where.
struct PlannedRead {
  uint32_t file = 0;
  uint64_t begin = 0;  // a multiple of the alignment
  uint64_t end = 0;    // likewise, but beyond the file's end there may be nothing
  uint64_t least = 0;  // so many bytes of it are wanted
  size_t first = 0;    // of ReadPlan::wanted: those that may want some of it
  size_t last = 0;     // behind them
};

struct ReadPlan {
  std::vector<Wanted> wanted;  // by file and offset; none is empty
  std::vector<PlannedRead> reads;
};

// `slot`: a multiple of `alignment`, a power of two.
ReadPlan plan_reads(std::vector<Wanted> wanted, uint64_t slot, uint64_t alignment);

// What of a read goes to one target.
struct Landing {
  std::byte* target = nullptr;
  uint64_t at = 0;  // in the read
  uint64_t size = 0;
};
// Calls `land(index of wanted, Landing) -> Result<>` for each, ends with its first error.
template <class Land>
Result<> for_each_landing(const ReadPlan& plan, const PlannedRead& read, const Land& land) {
  for (size_t at = read.first; at < read.last; ++at) {
    const Wanted& wanted = plan.wanted[at];
    const uint64_t begin = std::max(wanted.offset, read.begin);
    const uint64_t end = std::min(wanted.offset + wanted.size, read.end);
    if (begin >= end) continue;
    TRY(land(at, Landing{wanted.target + (begin - wanted.offset), begin - read.begin, end - begin}));
  }
  return success();
}

}  // namespace ckptfs::gpu

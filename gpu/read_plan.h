// Plans the reads for a set of wanted ranges of files. The ranges may come in any order. The reads are of whole aligned
// blocks, in the order of file and offset, and at most one slot long. Stateless.
//
// Ranges with a gap between them are read as one if the gap costs less than another read: always, if it has at most 4
// KiB or no whole block lies in it; up to 64 KiB, as long as less than 1/16 of what is wanted there is read in vain. So
// a rank that loads some of a tensor's columns reads little more than its own, and no block is read twice.
//
// Of a file whose chunks have digests (meta/formats/manifest.h) reads begin and end where chunks do, so that each chunk
// is whole in one read. Only at the ends of what is wanted a chunk may be cut; there its rest is read along if it costs
// as little as a gap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::gpu {

constexpr uint64_t kWorthReading = uint64_t{64} << 10;  // to read or copy fewer bytes costs less than another read

// A range of a file, and the memory that it goes to. Ranges may overlap. A range that is `alone` is not read together
// with others, and not from whole blocks: its reads are of exactly its bytes.
struct Wanted {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::byte* target = nullptr;
  bool alone = false;
  const std::string* of = nullptr;  // the name of the tensor, for messages; it must outlive the load
};

// The chunks of a file that have digests.
struct Chunks {
  uint64_t size = 0;  // a power of two, and a multiple of the alignment; 0: there are none
  uint64_t end = 0;   // the last chunk ends there, with the file
};

// One read, and the wanted ranges that it may serve.
struct PlannedRead {
  uint32_t file = 0;
  uint64_t begin = 0;  // a multiple of the alignment, unless the range is alone
  uint64_t end = 0;    // likewise; it may be beyond the end of the file
  uint64_t least = 0;  // the read must bring at least so many bytes
  size_t first = 0;    // in ReadPlan::wanted: the first range that may need some of it
  size_t last = 0;     // one past the last such range
};

struct ReadPlan {
  std::vector<Wanted> wanted;  // sorted by file and offset; none is empty
  std::vector<PlannedRead> reads;
};

// `slot` must be a multiple of `alignment`, which must be a power of two. `chunks` are by file. They may not be larger
// than a slot. A file beyond the end of the list has none.
ReadPlan plan_reads(std::vector<Wanted> wanted, uint64_t slot, uint64_t alignment,
                    const std::vector<Chunks>& chunks = {});

// The part of a read that goes to one target.
struct Landing {
  std::byte* target = nullptr;
  uint64_t at = 0;  // offset in the read
  uint64_t size = 0;
};
// Calls `land(index in wanted, Landing) -> Result<>` for each target of the read. Ends with its first error.
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

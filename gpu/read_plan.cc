#include "gpu/read_plan.h"

#include <algorithm>
#include <tuple>

namespace ckptfs::gpu {
namespace {

constexpr uint64_t kAlwaysRead = uint64_t{4} << 10;  // bytes of a gap that cost nothing
constexpr uint64_t kMostInVain = 16;                 // one part in so many of what is wanted, if a gap is larger

// Ranges that are read together: wanted[first, last), the bytes [begin, end) of the file.
struct Run {
  size_t first = 0;
  size_t last = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t in_vain = 0;  // bytes of the gaps
};

// Is a gap of so many bytes worth reading, with so many useful ones?
bool is_worth(const Run& run, uint64_t gap, uint64_t useful) {
  if (gap <= kAlwaysRead) return true;
  return gap <= kWorthReading && run.in_vain + gap < useful / kMostInVain;
}

// Is a range that follows a run worth reading with it, over a gap of so many bytes?
bool is_close(const Run& run, const Wanted& first, const Wanted& next, uint64_t gap) {
  return is_worth(run, gap, run.end - first.offset - run.in_vain + next.size);
}

Run run_from(const std::vector<Wanted>& wanted, size_t first, uint64_t block) {
  Run run{first, first, wanted[first].offset, 0};
  for (; run.last < wanted.size(); ++run.last) {
    const Wanted& next = wanted[run.last];
    if (run.last != first) {
      const bool apart = wanted[first].alone || next.alone || next.file != wanted[first].file;
      const uint64_t gap = next.offset > run.end ? next.offset - run.end : 0;
      const bool adjoins = next.offset / block <= (run.end + block - 1) / block;  // no block lies between them
      if (apart || (!adjoins && !is_close(run, wanted[first], next, gap))) break;
      run.in_vain += gap;
    }
    run.end = std::max(run.end, next.offset + next.size);
  }
  return run;
}

// Extends a run at both ends to whole chunks, where that is cheap.
void complete_chunks(Run& run, const Chunks& chunks) {
  const uint64_t useful = run.end - run.begin - run.in_vain;
  const uint64_t before = run.begin % chunks.size;
  if (is_worth(run, before, useful)) {
    run.begin -= before;
    run.in_vain += before;
  }
  const uint64_t behind = std::min((chunks.size - run.end % chunks.size) % chunks.size, chunks.end - run.end);
  if (is_worth(run, behind, useful)) run.end += behind;
}

// Where a read ends that begins at `begin` and is as long as a slot: at the end of a chunk.
uint64_t end_of_read(uint64_t begin, uint64_t slot, const Chunks& chunks) {
  return chunks.size == 0 ? begin + slot : (begin + slot) & ~(chunks.size - 1);
}

}  // namespace

ReadPlan plan_reads(std::vector<Wanted> wanted, uint64_t slot, uint64_t alignment, const std::vector<Chunks>& chunks) {
  ReadPlan plan;
  std::erase_if(wanted, [](const Wanted& one) { return one.size == 0; });
  std::ranges::sort(wanted, {}, [](const Wanted& one) { return std::tuple(one.file, one.offset); });
  for (size_t at = 0; at < wanted.size();) {
    Run run = run_from(wanted, at, alignment);
    const Chunks of_file = wanted[at].file < chunks.size() ? chunks[wanted[at].file] : Chunks();
    if (of_file.size != 0 && !wanted[at].alone) complete_chunks(run, of_file);
    size_t first = run.first, last = run.first;
    const uint64_t block = wanted[at].alone ? 1 : alignment;
    for (uint64_t begin = run.begin & ~(block - 1), end = 0; begin < run.end; begin = end) {
      end = std::min(end_of_read(begin, slot, of_file), (run.end + block - 1) & ~(block - 1));
      while (first < last && wanted[first].offset + wanted[first].size <= begin) ++first;
      while (last < run.last && wanted[last].offset < end) ++last;
      plan.reads.push_back({wanted[at].file, begin, end, std::min(end, run.end) - begin, first, last});
    }
    at = run.last;
  }
  plan.wanted = std::move(wanted);
  return plan;
}

}  // namespace ckptfs::gpu

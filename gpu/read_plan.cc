#include "gpu/read_plan.h"

#include <algorithm>
#include <tuple>

namespace ckptfs::gpu {
namespace {

constexpr uint64_t kAlwaysRead = uint64_t{4} << 10;  // bytes of a gap that reads of whole blocks bring anyway
constexpr uint64_t kMostInVain = 16;                 // one part in so many of what is wanted, if a gap is larger

// Ranges that are read together: wanted[first, last), up to the offset `end`.
struct Run {
  size_t first = 0;
  size_t last = 0;
  uint64_t end = 0;
  uint64_t in_vain = 0;  // bytes of the gaps
};

// Is a range that follows a run worth reading with it, over a gap of so many bytes?
bool is_close(const Run& run, const Wanted& first, const Wanted& next, uint64_t gap) {
  if (gap <= kAlwaysRead) return true;
  const uint64_t useful = run.end - first.offset - run.in_vain + next.size;
  return gap <= kWorthReading && run.in_vain + gap < useful / kMostInVain;
}

Run run_from(const std::vector<Wanted>& wanted, size_t first) {
  Run run{first, first, 0};
  for (; run.last < wanted.size(); ++run.last) {
    const Wanted& next = wanted[run.last];
    if (run.last != first) {
      const bool apart = wanted[first].alone || next.alone || next.file != wanted[first].file;
      const uint64_t gap = next.offset > run.end ? next.offset - run.end : 0;
      if (apart || !is_close(run, wanted[first], next, gap)) break;
      run.in_vain += gap;
    }
    run.end = std::max(run.end, next.offset + next.size);
  }
  return run;
}

}  // namespace

ReadPlan plan_reads(std::vector<Wanted> wanted, uint64_t slot, uint64_t alignment) {
  ReadPlan plan;
  std::erase_if(wanted, [](const Wanted& one) { return one.size == 0; });
  std::ranges::sort(wanted, {}, [](const Wanted& one) { return std::tuple(one.file, one.offset); });
  for (size_t at = 0; at < wanted.size();) {
    const Run run = run_from(wanted, at);
    size_t first = run.first, last = run.first;
    const uint64_t block = wanted[at].alone ? 1 : alignment;
    for (uint64_t begin = wanted[at].offset & ~(block - 1); begin < run.end; begin += slot) {
      const uint64_t end = std::min(begin + slot, (run.end + block - 1) & ~(block - 1));
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

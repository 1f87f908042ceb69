#include "gpu/read_plan.h"

#include <algorithm>
#include <tuple>

namespace ckptfs::gpu {
namespace {

constexpr uint64_t kWorthReading = uint64_t{64} << 10;  // a gap of so many bytes costs less than another read

// Ranges that are read together: wanted[first, last), up to the offset `end`.
struct Run {
  size_t first = 0;
  size_t last = 0;
  uint64_t end = 0;
};

Run run_from(const std::vector<Wanted>& wanted, size_t first) {
  Run run{first, first, 0};
  for (; run.last < wanted.size(); ++run.last) {
    const Wanted& next = wanted[run.last];
    const bool close = run.last == first || (next.file == wanted[first].file && next.offset <= run.end + kWorthReading);
    if (!close) break;
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
    for (uint64_t begin = wanted[at].offset & ~(alignment - 1); begin < run.end; begin += slot) {
      const uint64_t end = std::min(begin + slot, (run.end + alignment - 1) & ~(alignment - 1));
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

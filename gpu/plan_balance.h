// Balances bytes over ranks. A *holder set* is a set of ranks that hold the same bytes; any of them can take any of
// these. Quotas say how many bytes each of its ranks takes, so that the most loaded rank has as little as possible.
//
// The quotas are found by water-filling: the least loaded ranks of a set are filled to a common level. That is done set
// by set, those of few ranks first, because they have the least choice. It is exact for the nested sets that meshes
// give. It is then repeated for each set with the loads of all others as they are, which improves any other sets. All
// is in integers, so that each rank computes the same.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ckptfs::gpu {

struct HolderSet {
  std::vector<uint32_t> ranks;  // ascending
  uint64_t bytes = 0;
  std::vector<uint64_t> quotas;  // one for each of the ranks; their sum is `bytes`
};

class Balancer {
 public:
  // `hosts` has the number of each rank's host: among ranks with equal loads, those of different hosts come first. A
  // rank gets at least `least` bytes of a set, or none, unless the set has less.
  Balancer(std::span<const uint32_t> hosts, uint64_t least);

  // Finds the quotas of all sets. At the end it calls `settle(index)` once for each set, which may change the set's
  // quotas to those that are possible. The sets that follow make up for the difference.
  void fill(std::span<HolderSet> sets, const std::function<void(size_t)>& settle);

  // Bytes of each rank.
  const std::vector<uint64_t>& loads() const { return loads_; }

 private:
  std::vector<uint32_t> by_load(const HolderSet& set);
  void fill(HolderSet& set);
  void add(const HolderSet& set);
  void remove(const HolderSet& set);

  std::vector<uint32_t> hosts_;  // numbered from 0
  uint64_t least_;
  std::vector<uint64_t> loads_;
  std::vector<uint64_t> host_loads_;
  std::vector<uint32_t> turns_;  // in by_load: of each host, how many ranks came so far
};

}  // namespace ckptfs::gpu

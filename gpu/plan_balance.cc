#include "gpu/plan_balance.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace ckptfs::gpu {
namespace {

constexpr int kMostRounds = 8;
constexpr uint64_t kMostQuotas = uint64_t{1} << 22;  // in all rounds after the first; each takes some 200 ns
constexpr uint64_t kWorthwhile = 256;                // another round follows a gain of this part of the load

std::vector<uint32_t> numbered(std::span<const uint32_t> hosts) {
  std::map<uint32_t, uint32_t> numbers;
  std::vector<uint32_t> found;
  for (const uint32_t host : hosts) found.push_back(numbers.try_emplace(host, numbers.size()).first->second);
  return found;
}

// Those in which there is a choice, those of few ranks first.
std::vector<HolderSet*> in_order(std::span<HolderSet> sets) {
  std::vector<HolderSet*> order;
  for (HolderSet& set : sets) order.push_back(&set);
  std::ranges::stable_sort(order, {}, [](const HolderSet* set) { return set->ranks.size(); });
  return order;
}

}  // namespace

Balancer::Balancer(std::span<const uint32_t> hosts, uint64_t least)
    : hosts_(numbered(hosts)), least_(least), loads_(hosts.size()) {
  const size_t count = hosts_.empty() ? 0 : *std::ranges::max_element(hosts_) + 1;
  host_loads_.resize(count);
  turns_.resize(count);
}

void Balancer::fill(std::span<HolderSet> sets, const std::function<void(size_t)>& settle) {
  const auto order = in_order(sets);
  uint64_t quotas = 0;
  for (HolderSet* const set : order) {
    fill(*set);
    quotas += set->ranks.size();
  }
  const auto highest = [&] { return loads_.empty() ? 0 : *std::ranges::max_element(loads_); };
  uint64_t before = highest(), left = kMostQuotas;
  for (int round = 1; round < kMostRounds && quotas <= left; ++round, left -= quotas) {
    for (HolderSet* const set : order) {
      if (set->ranks.size() == 1) continue;
      remove(*set);
      fill(*set);
    }
    const uint64_t now = highest();
    if (now + now / kWorthwhile >= before) break;
    before = now;
  }
  for (HolderSet* const set : order) {
    remove(*set);
    if (set->ranks.size() == 1) {
      set->quotas = {set->bytes};
    } else {
      fill(*set);
      remove(*set);
    }
    settle(set - sets.data());
    add(*set);
  }
}

// Finds the largest number of ranks, of those with the least loads, that a common level gives at least `least_` each.
void Balancer::fill(HolderSet& set) {
  set.quotas.assign(set.ranks.size(), 0);
  const auto order = by_load(set);
  uint64_t sum = set.bytes, filled = 0;
  for (const uint32_t at : order) {
    const uint64_t load = loads_[set.ranks[at]];
    if (filled > 0 && (sum + load) / (filled + 1) < load + least_) break;
    sum += load;
    ++filled;
  }
  for (uint64_t number = 0; number < filled; ++number) {
    const uint32_t at = order[number];
    set.quotas[at] = sum / filled + (number < sum % filled ? 1 : 0) - loads_[set.ranks[at]];
  }
  add(set);
}

// Returns indices into the set's ranks: by load, and where loads are equal, one rank of each host after the other.
std::vector<uint32_t> Balancer::by_load(const HolderSet& set) {
  std::vector<uint32_t> order(set.ranks.size());
  std::iota(order.begin(), order.end(), 0U);
  if (order.size() == 1) return order;
  const auto load = [&](uint32_t at) { return loads_[set.ranks[at]]; };
  const auto host = [&](uint32_t at) { return hosts_[set.ranks[at]]; };
  std::ranges::stable_sort(order, {}, load);
  std::vector<uint32_t> turns(order.size());
  for (const uint32_t at : order) turns[at] = turns_[host(at)]++;
  for (const uint32_t at : order) turns_[host(at)] = 0;
  std::ranges::sort(order, {}, [&](uint32_t at) { return std::tuple(load(at), turns[at], host_loads_[host(at)], at); });
  return order;
}

void Balancer::add(const HolderSet& set) {
  for (size_t at = 0; at < set.ranks.size(); ++at) {
    loads_[set.ranks[at]] += set.quotas[at];
    host_loads_[hosts_[set.ranks[at]]] += set.quotas[at];
  }
}

void Balancer::remove(const HolderSet& set) {
  for (size_t at = 0; at < set.ranks.size(); ++at) {
    loads_[set.ranks[at]] -= set.quotas[at];
    host_loads_[hosts_[set.ranks[at]]] -= set.quotas[at];
  }
}

}  // namespace ckptfs::gpu

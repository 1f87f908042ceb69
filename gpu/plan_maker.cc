#include <algorithm>
#include <cerrno>
#include <numeric>
#include <unordered_map>

#include "gpu/plan.h"
#include "gpu/plan_gaps.h"
#include "meta/formats/box.h"

namespace ckptfs::gpu {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 62;
constexpr uint64_t kMostRuns = uint64_t{1} << 24;  // of cells that are cut, at all their holders

uint64_t hash_of(std::span<const uint32_t> kinds) {
  uint64_t hash = kinds.size();
  for (const uint32_t kind : kinds) hash = (hash ^ kind) * 0x9e3779b97f4a7c15U;
  return hash;
}

// Returns the place near `wanted` at which a cell, of that shape, is cut: at an end of it or between two rows, if that
// is nearer than `least`. All are in bytes, but for `sizes`.
uint64_t place_near(uint64_t wanted, std::span<const uint64_t> sizes, unsigned element, uint64_t least) {
  uint64_t block = std::accumulate(sizes.begin(), sizes.end(), uint64_t{element}, std::multiplies<>());
  for (const uint64_t size : sizes) {
    const uint64_t after = wanted % block, before = block - after;
    if (std::min(after, before) < least) return after <= before ? wanted - after : wanted + before;
    block /= size;
  }
  return wanted - wanted % element;
}

}  // namespace

class PlanMaker {
 public:
  PlanMaker(Plan& plan, const PlanOptions& options) : plan_(plan), options_(options) {}

  Result<> make(std::span<const std::string_view> descriptions, std::span<const uint32_t> hosts) {
    if (hosts.size() != descriptions.size()) return Error(EINVAL, "each rank needs a host");
    TRY_ASSIGN(plan_.kinds_, read_kinds(descriptions));
    set_of_kind_.assign(plan_.kinds_.kinds.size(), kNone);
    gather();
    plan_.cells_.reserve(held_.size());  // what is not used is never touched
    plan_.holdings_.reserve(held_.size());
    for (uint32_t tensor = 0; tensor < plan_.kinds_.tensors.size(); ++tensor) TRY(place(tensor));
    order_by_set();
    find_ranks();
    balance(hosts);
    return success();
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Sorts all holdings by tensor.
  void gather() {
    begins_.assign(plan_.kinds_.tensors.size() + 1, 0);
    for (const Kind& kind : plan_.kinds_.kinds) {
      for (const DescribedBox& one : kind.holdings.boxes) ++begins_[one.tensor + 1];
    }
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    held_.resize(begins_.back());
    auto next = begins_;
    for (uint32_t number = 0; number < plan_.kinds_.kinds.size(); ++number) {
      const auto& boxes = plan_.kinds_.kinds[number].holdings.boxes;
      for (uint32_t holding = 0; holding < boxes.size(); ++holding) {
        held_[next[boxes[holding].tensor]++] = {number, holding};
      }
    }
  }

  Result<> place(uint32_t tensor) {
    const GroupTensor& whole = plan_.kinds_.tensors[tensor];
    const uint64_t elements = *meta::formats::elements_of(whole.shape);
    const size_t dimensions = whole.shape.size();
    places_.clear();
    for (uint64_t at = begins_[tensor]; at < begins_[tensor + 1]; ++at) {
      const auto [kind, holding] = held_[at];
      const uint64_t* const box = plan_.kinds_.kinds[kind].holdings.boxes[holding].box;
      const bool empty = std::find(box + dimensions, box + 2 * dimensions, 0U) != box + 2 * dimensions;
      if (!empty) places_.push_back({box, kind, holding});
    }
    if (elements == 0) return add_empty(tensor);
    const auto cells = cutter().cut(places_, dimensions);
    if (!cells) return with_name(whole.name, cells.error());
    uint64_t held = 0;
    for (const Cell& cell : cells.value()) {
      TRY(add(tensor, cell));
      held += plan_.elements_of(plan_.cells_.back());
    }
    if (!options_.whole || held == elements) return success();
    return Error(EINVAL, whole.name + ": no rank holds its elements " + gap_of(cells.value(), whole.shape) + " of " +
                             text_of(whole.shape));
  }

  CellCutter& cutter() { return plan_.cutter_; }

  // An empty tensor is one cell, and all who describe it hold that.
  Result<> add_empty(uint32_t tensor) {
    for (uint64_t at = begins_[tensor]; at < begins_[tensor + 1]; ++at) {
      const auto [kind, holding] = held_[at];
      const bool again = !places_.empty() && places_.back().kind == kind;
      if (!again) places_.push_back({plan_.kinds_.kinds[kind].holdings.boxes[holding].box, kind, holding});
    }
    return places_.empty() ? success() : add(tensor, {places_.front().box, false, places_});
  }

  Result<> add(uint32_t tensor, const Cell& cell) {
    kinds_.clear();
    const uint64_t begin = plan_.holdings_.size();
    for (const Place& place : cell.places) {
      if (!kinds_.empty() && kinds_.back() == place.kind) {
        return Error(EINVAL, plan_.kinds_.tensors[tensor].name + ": rank " +
                                 std::to_string(plan_.kinds_.kinds[place.kind].ranks.front()) +
                                 " holds elements of it twice");
      }
      kinds_.push_back(place.kind);
      plan_.holdings_.push_back(place.holding);
    }
    if (cell.is_cut) TRY(count_runs(tensor, cell));
    plan_.cells_.push_back({cell.box, begin, tensor, set_of(kinds_), cell.is_cut});
    return count_bytes(plan_.cells_.back());
  }

  Result<> count_bytes(const Plan::PlacedCell& cell) {
    const uint64_t bytes = plan_.elements_of(cell) * plan_.element_size(cell);
    if (bytes > kMostBytes - bytes_) return Error(E2BIG, "all ranks together hold too many bytes for a plan");
    bytes_ += bytes;
    set_bytes_.resize(plan_.set_kinds_.size());
    set_bytes_[cell.set] += bytes;
    return success();
  }

  // A cell that is cut lies in runs in its holders' memory.
  Result<> count_runs(uint32_t tensor, const Cell& cell) {
    const size_t dimensions = plan_.kinds_.tensors[tensor].shape.size();
    for (const Place& place : cell.places) {
      uint64_t runs = 1, outer = 1;  // `outer` are those so far, if the cell is narrower than the box further in
      for (size_t at = 0; at < dimensions; ++at) {
        if (cell.box[dimensions + at] != place.box[dimensions + at]) runs = outer;
        outer *= cell.box[dimensions + at];
      }
      if (runs > kMostRuns - runs_) {
        return Error(E2BIG, plan_.kinds_.tensors[tensor].name + ": the boxes that ranks hold overlap in too many rows");
      }
      runs_ += runs;
    }
    return success();
  }

  // Returns the number of the holder set that is made of these kinds.
  uint32_t set_of(const std::vector<uint32_t>& kinds) {
    if (kinds.size() == 1 && set_of_kind_[kinds[0]] != kNone) return set_of_kind_[kinds[0]];
    const auto [first, last] = sets_.equal_range(hash_of(kinds));
    for (auto known = first; known != last; ++known) {
      if (plan_.set_kinds_[known->second] == kinds) return known->second;
    }
    const auto number = static_cast<uint32_t>(plan_.set_kinds_.size());
    plan_.set_kinds_.push_back(kinds);
    sets_.emplace(hash_of(kinds), number);
    if (kinds.size() == 1) set_of_kind_[kinds[0]] = number;
    return number;
  }

  void order_by_set() {
    auto& begins = plan_.set_begins_;
    begins.assign(plan_.set_kinds_.size() + 1, 0);
    for (const auto& cell : plan_.cells_) ++begins[cell.set + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    held_ = {};
    plan_.cells_by_set_.resize(plan_.cells_.size());
    auto next = begins;
    for (uint32_t cell = 0; cell < plan_.cells_.size(); ++cell) {
      plan_.cells_by_set_[next[plan_.cells_[cell].set]++] = cell;
    }
  }

  void find_ranks() {
    plan_.kind_sets_.resize(plan_.kinds_.kinds.size());
    for (uint32_t number = 0; number < plan_.set_kinds_.size(); ++number) {
      HolderSet& set = plan_.sets_.emplace_back();
      for (const uint32_t kind : plan_.set_kinds_[number]) {
        const auto& ranks = plan_.kinds_.kinds[kind].ranks;
        set.ranks.insert(set.ranks.end(), ranks.begin(), ranks.end());
        plan_.kind_sets_[kind].push_back(number);
      }
      std::ranges::sort(set.ranks);
      set.bytes = set_bytes_[number];
    }
  }

  void balance(std::span<const uint32_t> hosts) {
    Balancer balancer(hosts, options_.least_piece);
    balancer.fill(plan_.sets_, [&](size_t set) { settle(set); });
    plan_.loads_ = balancer.loads();
  }

  // Moves the ends of the ranks' stretches to places where cells may be cut.
  void settle(size_t number) {
    HolderSet& set = plan_.sets_[number];
    const auto cells = plan_.cells_of(number);
    uint64_t begin = 0, wanted = 0, before = 0;  // of the cell; the end of a stretch; the end of the one before it
    auto cell = cells.begin();
    for (size_t at = 0; at + 1 < set.ranks.size(); ++at) {
      wanted += set.quotas[at];
      const auto bytes = [&] {
        return plan_.elements_of(plan_.cells_[*cell]) * plan_.element_size(plan_.cells_[*cell]);
      };
      for (; cell != cells.end() && begin + bytes() <= wanted; ++cell) begin += bytes();
      uint64_t end = wanted;
      if (cell != cells.end()) {
        const auto& cut = plan_.cells_[*cell];
        const size_t dimensions = plan_.kinds_.tensors[cut.tensor].shape.size();
        end = begin + place_near(wanted - begin, {cut.box + dimensions, dimensions}, plan_.element_size(cut),
                                 options_.least_piece);
      }
      end = std::max(end, before);
      set.quotas[at] = end - before;
      before = end;
    }
    set.quotas.back() = set.bytes - before;
  }

  Plan& plan_;
  const PlanOptions options_;
  std::vector<uint64_t> begins_;                      // of each tensor, in held_
  std::vector<std::pair<uint32_t, uint32_t>> held_;   // kind, holding
  std::vector<Place> places_;                         // of one tensor
  std::vector<uint32_t> kinds_;                       // of one cell
  std::unordered_multimap<uint64_t, uint32_t> sets_;  // by hash
  std::vector<uint32_t> set_of_kind_;                 // the holder set of this kind alone
  std::vector<uint64_t> set_bytes_;                   // of each holder set
  uint64_t bytes_ = 0;
  uint64_t runs_ = 0;
};

Result<std::unique_ptr<const Plan>> Plan::make(std::span<const std::string_view> descriptions,
                                               std::span<const uint32_t> hosts, const PlanOptions& options) {
  std::unique_ptr<Plan> plan(new Plan);
  TRY(PlanMaker(*plan, options).make(descriptions, hosts));
  return std::unique_ptr<const Plan>(std::move(plan));
}

}  // namespace ckptfs::gpu

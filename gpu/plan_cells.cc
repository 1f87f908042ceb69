#include "gpu/plan_cells.h"

#include <algorithm>
#include <cerrno>

namespace ckptfs::gpu {
namespace {

constexpr unsigned kMostDepth = 512;  // of cuts within cuts
// Places of cut boxes, of all tensors. Each takes up to 200 bytes.
constexpr size_t kMostCuts = size_t{1} << 20;

}  // namespace

Result<std::span<const Cell>> CellCutter::cut(std::vector<Place>& places, size_t dimensions) {
  dimensions_ = dimensions;
  depth_ = 0;
  cells_.clear();
  joined_.clear();
  find_distinct(places);
  if (!distinct_.empty()) TRY(cut(distinct_));
  return std::span<const Cell>(cells_);
}

void CellCutter::find_distinct(std::vector<Place>& places) {
  const auto compare = [&](const Place& a, const Place& b) {
    return std::lexicographical_compare_three_way(a.box, a.box + 2 * dimensions_, b.box, b.box + 2 * dimensions_);
  };
  const auto before = [&](const Place& a, const Place& b) {
    const auto order = compare(a, b);
    return order == 0 ? std::pair(a.kind, a.holding) < std::pair(b.kind, b.holding) : order < 0;
  };
  if (!std::ranges::is_sorted(places, before)) std::ranges::sort(places, before);
  distinct_.clear();
  for (auto first = places.begin(); first != places.end();) {
    auto last = first + 1;
    while (last != places.end() && compare(*first, *last) == 0) ++last;
    distinct_.push_back({first->box, std::span<const Place>(first, last)});
    first = last;
  }
}

Result<> CellCutter::cut(std::span<Fragment> fragments) {
  if (equal(fragments)) {
    add_cell(fragments);
    return success();
  }
  if (depth_ == kMostDepth) return Error(E2BIG, "the boxes that ranks hold lie in too irregular a way for a plan");
  ++depth_;
  const auto done = cut_further(fragments);
  --depth_;
  return done;
}

Result<> CellCutter::cut_further(std::span<Fragment> fragments) {
  for (size_t dimension = 0; dimension < dimensions_; ++dimension) {
    TRY_ASSIGN(const bool separated, separate(fragments, dimension));
    if (separated) return success();
  }
  return slice(fragments);
}

bool CellCutter::equal(std::span<const Fragment> fragments) const {
  return std::ranges::all_of(fragments.subspan(1), [&](const Fragment& other) {
    return std::equal(other.box, other.box + 2 * dimensions_, fragments.front().box);
  });
}

void CellCutter::add_cell(std::span<const Fragment> fragments) {
  const Fragment& first = fragments.front();
  const bool is_cut = fragments.size() > 1 || first.box != first.places.front().box;
  auto places = first.places;
  if (fragments.size() > 1) {
    auto& all = joined_.emplace_back();
    for (const Fragment& one : fragments) all.insert(all.end(), one.places.begin(), one.places.end());
    std::ranges::sort(all, {}, [](const Place& place) { return std::pair(place.kind, place.holding); });
    places = all;
  }
  cells_.push_back({first.box, is_cut, places});
}

Result<bool> CellCutter::separate(std::span<Fragment> fragments, size_t dimension) {
  const auto begin = [&](const Fragment& fragment) { return begin_of(fragment, dimension); };
  if (!std::ranges::is_sorted(fragments, {}, begin)) std::ranges::stable_sort(fragments, {}, begin);
  size_t first = 0;
  uint64_t end = end_of(fragments.front(), dimension);
  for (size_t at = 1; at < fragments.size(); ++at) {
    if (begin(fragments[at]) >= end) {
      TRY(cut(fragments.subspan(first, at - first)));
      first = at;
    }
    end = std::max(end, end_of(fragments[at], dimension));
  }
  if (first == 0) return false;
  TRY(cut(fragments.subspan(first)));
  return true;
}

Result<> CellCutter::slice(std::span<const Fragment> fragments) {
  const auto differ = [&](size_t dimension) {
    return std::ranges::any_of(fragments, [&](const Fragment& other) {
      return begin_of(other, dimension) != begin_of(fragments.front(), dimension) ||
             end_of(other, dimension) != end_of(fragments.front(), dimension);
    });
  };
  size_t dimension = 0;  // there is one in which they differ, because they are not equal
  while (!differ(dimension)) ++dimension;
  std::vector<uint64_t> edges;
  for (const Fragment& one : fragments) {
    edges.push_back(begin_of(one, dimension));
    edges.push_back(end_of(one, dimension));
  }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<std::vector<Fragment>> slices(edges.size() - 1);
  for (const Fragment& one : fragments) {
    size_t at = std::ranges::lower_bound(edges, begin_of(one, dimension)) - edges.begin();
    for (; edges[at] < end_of(one, dimension); ++at) {
      cuts_ += one.places.size();
      if (cuts_ > kMostCuts) return Error(E2BIG, "the boxes that ranks hold overlap in too many ways for a plan");
      slices[at].push_back({sliced(one.box, dimension, edges[at], edges[at + 1]), one.places});
    }
  }
  for (auto& slice : slices) {
    if (!slice.empty()) TRY(cut(slice));
  }
  return success();
}

// Returns the part of a box that lies in [begin, end) of a dimension: the box itself, if that is all of it.
const uint64_t* CellCutter::sliced(const uint64_t* box, size_t dimension, uint64_t begin, uint64_t end) {
  if (box[dimension] == begin && box[dimensions_ + dimension] == end - begin) return box;
  auto& made = cut_boxes_.emplace_back(box, box + 2 * dimensions_);
  made[dimension] = begin;
  made[dimensions_ + dimension] = end - begin;
  return made.data();
}

}  // namespace ckptfs::gpu

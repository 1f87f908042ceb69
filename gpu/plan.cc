#include "gpu/plan.h"

#include <algorithm>

#include "meta/formats/box.h"

namespace ckptfs::gpu {
namespace {

using meta::formats::Box;
using meta::formats::BoxRuns;
using meta::formats::Shape;

// The place of a box within one that contains it.
Box within(const uint64_t* inner, const uint64_t* outer, size_t dimensions) {
  Box box{Shape(inner, inner + dimensions), Shape(inner + dimensions, inner + 2 * dimensions)};
  for (size_t at = 0; at < dimensions; ++at) box.offsets[at] -= outer[at];
  return box;
}

}  // namespace

std::vector<PlannedPart> Plan::owned(uint32_t rank) const { return parts(rank, true); }

std::vector<PlannedPart> Plan::held(uint32_t rank) const { return parts(rank, false); }

std::span<const uint32_t> Plan::cells_of(uint32_t set) const {
  return std::span(cells_by_set_).subspan(set_begins_[set], set_begins_[set + 1] - set_begins_[set]);
}

uint64_t Plan::elements_of(const PlacedCell& cell) const {
  const size_t dimensions = kinds_.tensors[cell.tensor].shape.size();
  uint64_t elements = 1;
  for (size_t at = 0; at < dimensions; ++at) elements *= cell.box[dimensions + at];
  return elements;
}

unsigned Plan::element_size(const PlacedCell& cell) const {
  return meta::formats::size_of(kinds_.tensors[cell.tensor].dtype);
}

// Calls `visit(cell, begin, end, owner)` for each stretch of elements of a cell that one rank owns, in order.
template <class Visit>
void Plan::for_each_stretch(uint32_t set, const Visit& visit) const {
  const HolderSet& holders = sets_[set];
  size_t owner = 0;
  uint64_t left = holders.quotas[0];  // bytes that the owner still gets
  for (const uint32_t number : cells_of(set)) {
    const PlacedCell& cell = cells_[number];
    const uint64_t elements = elements_of(cell), size = element_size(cell);
    if (elements == 0) visit(cell, 0, 0, holders.ranks[owner]);
    for (uint64_t begin = 0; begin < elements;) {
      while (left == 0) left = holders.quotas[++owner];
      const uint64_t end = std::min(elements, begin + left / size);
      visit(cell, begin, end, holders.ranks[owner]);
      left -= (end - begin) * size;
      begin = end;
    }
  }
}

std::vector<PlannedPart> Plan::parts(uint32_t rank, bool only_owned) const {
  std::vector<PlannedPart> found;
  const uint32_t kind = kinds_.kind_of[rank];
  for (const uint32_t set : kind_sets_[kind]) {
    uint64_t message = 0;
    for_each_stretch(set, [&](const PlacedCell& cell, uint64_t begin, uint64_t end, uint32_t owner) {
      const PlannedPart part{0, begin, end, message++, set, owner};
      if (!only_owned || owner == rank) add_parts(cell, kind, part, found);
    });
  }
  return found;
}

// Adds a part, which is one of the cell, as parts of the holding of a kind.
void Plan::add_parts(const PlacedCell& cell, uint32_t kind, PlannedPart part, std::vector<PlannedPart>& parts) const {
  const auto& kinds = set_kinds_[cell.set];
  part.holding = holdings_[cell.holdings + (std::ranges::lower_bound(kinds, kind) - kinds.begin())];
  if (cell.is_cut == 0) return parts.push_back(part);
  const size_t dimensions = kinds_.tensors[cell.tensor].shape.size();
  const uint64_t* const held = kinds_.kinds[kind].holdings.boxes[part.holding].box;
  const BoxRuns runs(within(cell.box, held, dimensions), Shape(held + dimensions, held + 2 * dimensions));
  runs.for_each(part.begin, part.end, [&](uint64_t first, uint64_t, uint64_t count) {
    part.begin = first;
    part.end = first + count;
    parts.push_back(part);
  });
}

}  // namespace ckptfs::gpu

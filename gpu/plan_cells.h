// Cuts the boxes of one tensor into *cells*: boxes that are disjoint, each with all the places where ranks hold it.
// Equal boxes of several ranks are one cell. Boxes that overlap without being equal are cut along the first dimension
// in which they differ, then along the next.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "io/result.h"

namespace ckptfs::gpu {

// Where ranks hold a box. `kind` stands for all ranks whose descriptions are equal. `box` has the offsets, and after
// them the sizes, as everywhere here.
struct Place {
  const uint64_t* box = nullptr;
  uint32_t kind = 0;
  uint32_t holding = 0;  // its index in the description
};

struct Cell {
  const uint64_t* box = nullptr;
  bool is_cut = false;            // the box is not that of all its places
  std::span<const Place> places;  // ordered by kind
};

class CellCutter {
 public:
  // Returns the cells of a tensor, until the next call; their boxes stay as long as the cutter and the places' boxes
  // do. `places` are all those of the tensor; none is empty, and they are sorted here. Fails with E2BIG if there are
  // too many cells.
  Result<std::span<const Cell>> cut(std::vector<Place>& places, size_t dimensions);

 private:
  // A box, or a part of one, and the places of the whole of it.
  struct Fragment {
    const uint64_t* box = nullptr;
    std::span<const Place> places;
  };

  void find_distinct(std::vector<Place>& places);
  Result<> cut(std::span<Fragment> fragments);
  Result<> cut_further(std::span<Fragment> fragments);
  bool equal(std::span<const Fragment> fragments) const;
  void add_cell(std::span<const Fragment> fragments);
  // Calls itself for groups of fragments that do not overlap in that dimension. Returns false if there is only one.
  Result<bool> separate(std::span<Fragment> fragments, size_t dimension);
  Result<> slice(std::span<const Fragment> fragments);
  const uint64_t* sliced(const uint64_t* box, size_t dimension, uint64_t begin, uint64_t end);

  uint64_t begin_of(const Fragment& fragment, size_t dimension) const { return fragment.box[dimension]; }
  uint64_t end_of(const Fragment& fragment, size_t dimension) const {
    return fragment.box[dimension] + fragment.box[dimensions_ + dimension];
  }

  size_t dimensions_ = 0;
  unsigned depth_ = 0;
  std::vector<Fragment> distinct_;
  std::vector<Cell> cells_;
  std::deque<std::vector<Place>> joined_;        // places of cells that several boxes share
  std::deque<std::vector<uint64_t>> cut_boxes_;  // of all tensors
  size_t cuts_ = 0;                              // places of slices so far
};

}  // namespace ckptfs::gpu

// Boxes: rectangular parts of tensors. A checkpoint that several ranks saved holds a tensor in boxes, and each box lies
// contiguously in a file or in memory. Shapes are in elements, outermost dimension first. Elements are numbered in
// row-major order, in the whole tensor and in the box.
//
// Thread safety: stateless.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "io/result.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// The box of all of a tensor.
Box whole_box(const Shape& shape);

// Has the box the tensor's number of dimensions, and lies it inside? The tensor must have at most 2^60 elements. All
// functions below need such a box.
bool lies_within(const Box& box, const Shape& shape);

// Returns the boxes, in order, that hold elements [begin, end) of a box; `end` is at most its number of elements. Their
// offsets are those of the tensor. Each of them is contiguous in the box's memory. They are at most two for each
// dimension, less one.
std::vector<Box> boxes_of_range(const Box& box, uint64_t begin, uint64_t end);

// The runs of a box: each has consecutive elements of the whole tensor, which are consecutive in the box, too. All have
// the same length.
class BoxRuns {
 public:
  BoxRuns(const Box& box, const Shape& shape);

  uint64_t count() const { return count_; }
  uint64_t length() const { return length_; }  // elements of each
  // Returns the number, in the whole tensor, of a run's first element. In the box it is run * length().
  uint64_t begin(uint64_t run) const;

  // Calls `visit(first element in the tensor, first element in the box, elements)` for each run, or part of one, of the
  // box's elements [begin, end).
  template <class Visit>
  void for_each(uint64_t begin, uint64_t end, const Visit& visit) const {
    for (uint64_t at = begin; at < end;) {
      const uint64_t run = at / length_, to = std::min(end, (run + 1) * length_);
      visit(this->begin(run) + at % length_, at, to - at);
      at = to;
    }
  }

 private:
  struct Outer {
    uint64_t size = 0;  // of the box, in this dimension
    uint64_t step = 0;  // elements of the tensor between two neighbours in this dimension
  };
  std::vector<Outer> outer_;  // the dimensions that a single run cannot span
  uint64_t first_ = 0;
  uint64_t count_ = 0;
  uint64_t length_ = 0;
};

// Consecutive elements of a tensor, and where they are. `begin` is the number of the first.
struct PlacedRun {
  uint64_t begin = 0;
  Piece piece;
};

// Adds the runs of a box whose elements, of `element` bytes each, are contiguous in `place`.
void add_runs(const Box& box, const Shape& shape, uint64_t element, const Piece& place, std::vector<PlacedRun>& runs);

// Joins the runs into the bytes of a tensor of `elements` elements of `element` bytes each. Fails with EBADMSG, in
// words, if they leave a gap or overlap.
Result<std::vector<Piece>> join_runs(std::vector<PlacedRun> runs, uint64_t elements, uint64_t element);

}  // namespace ckptfs::meta::formats

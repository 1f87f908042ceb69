#include "meta/formats/box.h"

#include <cerrno>
#include <string>

namespace ckptfs::meta::formats {
namespace {

Error at_element(uint64_t element, const char* what) {
  return Error(EBADMSG, "its pieces " + std::string(what) + " at element " + std::to_string(element));
}

// Returns the number of outer dimensions that a single run cannot span.
size_t outer_dimensions(const Box& box, const Shape& shape) {
  size_t full = shape.size();  // from this dimension on, the box is as wide as the tensor
  while (full > 0 && box.sizes[full - 1] == shape[full - 1]) --full;
  return full == 0 ? 0 : full - 1;
}

// Returns, for each dimension, the number of elements between two neighbours in it.
Shape steps_of(const Shape& sizes) {
  Shape steps(sizes.size(), 1);
  for (size_t at = sizes.size(); at > 1; --at) steps[at - 2] = steps[at - 1] * sizes[at - 1];
  return steps;
}

}  // namespace

Box whole_box(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

bool lies_within(const Box& box, const Shape& shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (size_t at = 0; at < shape.size(); ++at) {
    if (box.offsets[at] > shape[at] || box.sizes[at] > shape[at] - box.offsets[at]) return false;
  }
  return true;
}

std::vector<Box> boxes_of_range(const Box& box, uint64_t begin, uint64_t end) {
  std::vector<Box> boxes;
  const Shape steps = steps_of(box.sizes);
  for (uint64_t at = begin; at < end;) {
    Box next{box.offsets, Shape(box.sizes.size(), 1)};
    // Whole slices of the outermost dimension of which one fits between `at` and `end`.
    size_t dimension = 0;
    while (dimension < steps.size() && (at % steps[dimension] != 0 || steps[dimension] > end - at)) ++dimension;
    uint64_t left = at, length = 1;
    for (size_t outer = 0; outer < steps.size(); ++outer) {
      const uint64_t index = left / steps[outer];
      left %= steps[outer];
      next.offsets[outer] += index;
      if (outer == dimension) next.sizes[outer] = std::min((end - at) / steps[outer], box.sizes[outer] - index);
      if (outer > dimension) next.sizes[outer] = box.sizes[outer];
      length *= next.sizes[outer];
    }
    boxes.push_back(std::move(next));
    at += length;
  }
  return boxes;
}

BoxRuns::BoxRuns(const Box& box, const Shape& shape) {
  const uint64_t elements = *elements_of(box.sizes);
  if (elements == 0) return;
  const Shape steps = steps_of(shape);
  for (size_t at = 0; at < shape.size(); ++at) first_ += box.offsets[at] * steps[at];
  count_ = 1;
  for (size_t at = 0; at < outer_dimensions(box, shape); ++at) {
    outer_.push_back({box.sizes[at], steps[at]});
    count_ *= box.sizes[at];
  }
  length_ = elements / count_;
}

uint64_t BoxRuns::begin(uint64_t run) const {
  uint64_t begin = first_;
  for (size_t at = outer_.size(); at > 0; --at) {
    begin += run % outer_[at - 1].size * outer_[at - 1].step;
    run /= outer_[at - 1].size;
  }
  return begin;
}

void add_runs(const Box& box, const Shape& shape, uint64_t element, const Piece& place, std::vector<PlacedRun>& runs) {
  const BoxRuns of(box, shape);
  of.for_each(0, of.count() * of.length(), [&](uint64_t begin, uint64_t at, uint64_t elements) {
    runs.push_back({begin, {place.file, place.offset + at * element, elements * element}});
  });
}

Result<std::vector<Piece>> join_runs(std::vector<PlacedRun> runs, uint64_t elements, uint64_t element) {
  std::ranges::sort(runs, {}, &PlacedRun::begin);
  std::vector<Piece> pieces;
  uint64_t at = 0;
  for (const PlacedRun& run : runs) {
    if (run.begin > at) return at_element(at, "leave a gap");
    if (run.begin < at) return at_element(run.begin, "overlap");
    at += run.piece.size / element;
    const bool follows = !pieces.empty() && pieces.back().file == run.piece.file &&
                         pieces.back().offset + pieces.back().size == run.piece.offset;
    if (follows) {
      pieces.back().size += run.piece.size;
    } else {
      pieces.push_back(run.piece);
    }
  }
  if (at != elements) return at_element(at, "leave a gap");
  return pieces;
}

}  // namespace ckptfs::meta::formats

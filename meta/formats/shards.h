// Joins tensors whose elements are spread over ranks. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// One rank's part of a group: contiguous elements of one state.
struct Flat {
  Piece piece;
  Dtype dtype = Dtype::float32;
  uint64_t elements() const { return piece.size / size_of(dtype); }
};
using Flats = std::vector<std::optional<Flat>>;  // by rank

struct Member {
  std::string name;
  Shape shape;
  uint64_t elements = 0;
  uint64_t padding = 0;  // elements that follow it, in stages 1 and 2
};

inline uint64_t divide_up(uint64_t number, uint64_t by) { return (number + by - 1) / by; }

// Joins a tensor of which each rank holds ceil(elements / ranks) elements from index `at` on; the rest of the last
// ranks' elements is padding. Each rank must have a value in `flats`. Returns nothing if a rank holds too few elements
// or another type.
std::optional<Tensor> joined(const Member& member, const Flats& flats, uint64_t at);
// Lays all ranks' parts end to end, and returns the index of the element at which each part ends. Each rank must have a
// value in `flats`. Returns an empty list if there are more than 2^60 elements.
using Ends = std::vector<uint64_t>;
Ends ends_of(const Flats& flats);
// Joins a tensor that begins at element `at` of all ranks' parts laid end to end. Returns nothing if the parts end
// before it, or have different types.
std::optional<Tensor> cut_out(const Member& member, const Flats& flats, const Ends& ends, uint64_t at);

}  // namespace ckptfs::meta::formats

// Tensors whose elements several ranks hold, put together. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// What one rank holds of a group: elements of one state, back to back.
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
  uint64_t padding = 0;  // elements behind it, in stages 1 and 2
};

inline uint64_t divide_up(uint64_t number, uint64_t by) { return (number + by - 1) / by; }

// Of each rank ceil(elements / ranks) elements from `at` on, of the last ones less: what they have beyond the tensor is
// padding. Every rank is there. None: one holds less, or another type.
std::optional<Tensor> joined(const Member& member, const Flats& flats, uint64_t at);
// Where each rank's part ends, of all parts end to end, in elements. Every rank is there. Empty: more than there can
// be.
using Ends = std::vector<uint64_t>;
Ends ends_of(const Flats& flats);
// The elements from `at` on, of all ranks' parts end to end. As above.
std::optional<Tensor> cut_out(const Member& member, const Flats& flats, const Ends& ends, uint64_t at);

}  // namespace ckptfs::meta::formats

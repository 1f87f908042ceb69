// Descriptions: what one rank holds, as bytes that it sends to the other ranks. A *holding* is a box of a tensor whose
// elements the rank has contiguously in memory, in row-major order. A description has two sections: the table of the
// tensors (names, types, shapes), which is the same on most ranks, and the boxes. The same holdings, in the same order,
// give the same bytes.
//
// The reader takes nothing on trust: a description may come from a broken rank. It is linear in its input.
//
// Thread safety: stateless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"
#include "meta/formats/dtype.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::gpu {

// Sizes and offsets are in elements, one for each dimension. All holdings of a name have the same type and shape.
struct Holding {
  std::string_view name;
  meta::formats::Dtype dtype = meta::formats::Dtype::float32;
  std::span<const uint64_t> shape;    // of the whole tensor
  std::span<const uint64_t> offsets;  // of the box
  std::span<const uint64_t> sizes;
};

// Fails with EINVAL, in words, if a box does not lie in its tensor, or two holdings of a name do not agree.
Result<std::string> describe(std::span<const Holding> holdings);

// The two sections of a description. They are parts of its bytes.
struct Sections {
  std::string_view table;
  std::string_view boxes;
};
Result<Sections> sections_of(std::string_view description);

// A tensor of a table. `name` is a part of the table's bytes.
struct DescribedTensor {
  std::string_view name;
  meta::formats::Dtype dtype = meta::formats::Dtype::float32;
  meta::formats::Shape shape;
  meta::formats::Shape box;  // of all of it: zeros, then the shape
};
Result<std::vector<DescribedTensor>> read_table(std::string_view table);

// A holding as the planner knows it. `box` has the offsets, and after them the sizes.
struct DescribedBox {
  const uint64_t* box = nullptr;
  uint32_t tensor = 0;  // its index in the table
};

// The boxes of a description, in the order of its holdings.
struct DescribedBoxes {
  std::vector<DescribedBox> boxes;
  std::vector<uint64_t> coordinates;  // of the boxes that are no whole tensors; the others are those of the table
};
// `room` is how many coordinates may be read; it shrinks by those that are. The table must outlive the boxes.
Result<DescribedBoxes> read_boxes(std::string_view boxes, std::span<const DescribedTensor> table, uint64_t& room);

}  // namespace ckptfs::gpu

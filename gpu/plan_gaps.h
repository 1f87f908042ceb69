// Finds what of a tensor no rank holds. Stateless.
#pragma once

#include <span>
#include <string>

#include "gpu/plan_cells.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::gpu {

// Returns a box that no cell covers, in words: "[0:16, 512:1024]". It has the first such element of the tensor. The
// cells are disjoint and do not cover the tensor.
std::string gap_of(std::span<const Cell> cells, const meta::formats::Shape& shape);

}  // namespace ckptfs::gpu

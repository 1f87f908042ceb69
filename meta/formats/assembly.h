// Puts tensors together from the boxes in which a checkpoint holds them.
//
// Thread safety: stateless.
#pragma once

#include <vector>

#include "io/result.h"
#include "meta/formats/map_budget.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Do the boxes cover every element of the tensor, and each once? Fails with EBADMSG, in words, if not; with ENOTSUP if
// they are too many and too irregular to tell. All must lie within the tensor.
Result<> check_tiling(const std::vector<PlacedBox>& boxes, const Shape& shape);

// Makes the tensor that the boxes cover. All must lie within it, and each of their pieces must have the bytes of its
// box. The budget's options tell whether it has pieces or boxes. Fails as check_tiling() does, and with ENOTSUP if the
// tensor is cut into more runs than the budget allows.
Result<Tensor> assembled(Dtype dtype, const Shape& shape, std::vector<PlacedBox> boxes, MapBudget& budget);

// The tensors that lie at each place of the first dimension, which there is: what is left has no such dimension. Fails
// with ENOTSUP if they exceed the budget.
Result<std::vector<Tensor>> rows_of(const Tensor& tensor, MapBudget& budget);

}  // namespace ckptfs::meta::formats

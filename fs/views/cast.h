// Casts floating point elements of one type to another. Rounds to nearest, ties to even, as torch does.
//
// The rounding is in to_bfloat16 and to_float16 (cast.cc). Each has a form for vector instructions, eight_to_bfloat16
// and to_float16_quickly, which has to give the same bits, also for NaN. Which tensors are cast: type_in() in
// view.cc.
//
// Thread safety: pure.
#pragma once

#include <cstddef>
#include <span>

#include "meta/formats/dtype.h"

namespace ckptfs::fs {

using meta::formats::Dtype;

// float32, float16 or bfloat16
bool is_castable(Dtype dtype);

// Casts whole elements of `from` (of any alignment) to as many of `to`. Both types must be castable.
void cast(std::span<const std::byte> source, Dtype from, std::span<std::byte> target, Dtype to);

}  // namespace ckptfs::fs

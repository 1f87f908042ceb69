// Names for a step that has none of its own, as a save alone makes it: those of another step of the same run, whose
// swap files hold the same parameters at the same places. Pure functions.
#pragma once

#include <string>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// The nameless step's map, with all parameters of `named` (which is that of `named_files`). States that lie in swap
// files are this step's own; what lies elsewhere (small groups, buffers, frozen parameters) is another moment's and is
// left out. Nothing is changed where the swap files are not the same, by path and length.
TensorMap named_like(TensorMap nameless, const StepFiles& files, const TensorMap& named, const StepFiles& named_files);

}  // namespace ckptfs::meta::formats

// Names the parameters of a step that has no names, because only a save made it. The names come from another step of
// the same run, whose swap files hold the same parameters at the same places. Pure functions.
#pragma once

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Returns the map of the nameless step with all parameters of `named`, the map of `named_files`. Only states in swap
// files are taken, and point to this step's own files. States elsewhere (small groups, buffers, frozen parameters) are
// of another moment and are left out. If the two steps' swap files differ in path or length, the map is returned
// unchanged.
TensorMap named_like(TensorMap nameless, const StepFiles& files, const TensorMap& named, const StepFiles& named_files);

}  // namespace ckptfs::meta::formats

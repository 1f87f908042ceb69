// Reads a step of whatever kind: DeepSpeed's, that of a Trainer with DeepSpeed in it, PyTorch's DCP, or weights that
// Hugging Face wrote. What is found is a *tensor map* (tensor_map.h): for each state of each parameter its type, its
// shape, and which bytes of which files it is.
//
// *Bounds.* Whoever may write a step may have these readers read anything. So each is linear in its input and bounded
// in memory, and nothing is executed:
//   - JSON is checked for depth, number of values and lengths before anything is made of it, and only what is asked for
//     is kept (io/json.h).
//   - A pickle is never walked, only asked, and no question goes through a large value twice (pickle_access.h).
//   - What a map may take is counted as it grows (map_budget.h).
//   - Names are looked up in sorted tables, for hashes can be made to collide.
//
// What is beyond a bound is a *problem* of that file, which says so. A step may have any number of such files: 2 GiB
// are read of one step (io/read_limit.h); past that it is *unknown*, and its view empty. Readers ask before each read
// whether the mount is ending.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "meta/formats/map_budget.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// The version of the readers. Raise it when they make another map of the same files: maps that older readers left in
// the index are then made anew.
inline constexpr uint64_t kReaders = 7;

// Parts that cannot be read are listed as problems, and everything else is in the map. If the step's limit on what is
// read is reached, the map is empty except for that problem.
TensorMap read_checkpoint(const StepFiles& files, const MapOptions& options = {});

// The folder that holds DeepSpeed's files: "" or "global_step4/"; none: there is none.
std::optional<std::string> deepspeed_folder(const StepFiles& files);

// The tensors of a single safetensors file, under the names that they have in it.
TensorMap read_safetensors(const StepFiles& files, uint32_t index, const MapOptions& options = {});

}  // namespace ckptfs::meta::formats

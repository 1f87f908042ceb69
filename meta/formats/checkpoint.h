// Reads a step of any supported kind: DeepSpeed's, a Trainer's with DeepSpeed's in it, PyTorch's DCP, one that was
// saved through libckptfs, or weights that Hugging Face wrote.
#pragma once

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// The version of the readers. Raise it when they make another map of the same files: maps that older readers left in
// the index are then made anew.
inline constexpr uint64_t kReaders = 2;

// Parts that cannot be read are listed as problems, and everything else is in the map. If the step's limit on what is
// read is reached, the map is empty except for that problem.
TensorMap read_checkpoint(const StepFiles& files);

// The tensors of a single safetensors file, under the names that they have in it.
TensorMap read_safetensors(const StepFiles& files, uint32_t index);

}  // namespace ckptfs::meta::formats

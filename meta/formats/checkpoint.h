// Reads a step of whatever kind: DeepSpeed's, that of a Trainer with DeepSpeed in it, PyTorch's DCP, or weights that
// Hugging Face wrote.
#pragma once

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Another one where the readers make another map of the same files: what was kept of the last ones' is read anew.
inline constexpr uint64_t kReaders = 2;

// What cannot be read is among the problems, and the rest is there; nothing, where the limit of the step was reached.
TensorMap read_checkpoint(const StepFiles& files);

// The tensors of one safetensors file of them, by their names in it.
TensorMap read_safetensors(const StepFiles& files, uint32_t index);

}  // namespace ckptfs::meta::formats

// DeepSpeed's ZeRO checkpoints, stages 1 to 3, with the optimizer in memory or on NVMe: which bytes of which files each
// parameter is, over all ranks and without padding. Only headers are read.
//
// Sources: deepspeed/utils/zero_to_fp32.py for what is in memory; for swap files, runs of DeepSpeed 0.19.8:
//  - a checkpoint's param_shapes has a dict for each (sub-)group of the optimizer, in the order of its parameters;
//  - stage 3: each rank holds ceil(elements / ranks) of each parameter, back to back, the last one padded;
//  - stages 1 and 2: each rank holds one part of all parameters of the group, laid end to end;
//  - a group's name is the ds_ids of its first and last parameter; where a swap file has that name it is the truth,
//    whatever optim_states.pt says (pipelined runs leave recycled buffers there).
//
// Model parallel checkpoints and experts are named as a problem, and not read.
#pragma once

#include <string>
#include <string_view>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Whether a file of that name belongs to such a checkpoint: "mp_rank_00_model_states.pt", "offloaded_tensors/...".
bool is_deepspeed_file(std::string_view path);
// Whether `folder` of the step ("" or "global_step4/") holds such a checkpoint.
bool is_deepspeed(const StepFiles& files, const std::string& folder);

// What cannot be read is among the problems, and the rest is there.
TensorMap read_deepspeed(const StepFiles& files, const std::string& folder);

}  // namespace ckptfs::meta::formats

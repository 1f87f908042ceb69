// Reads DeepSpeed's ZeRO checkpoints, stages 1 to 3, with the optimizer in memory or on NVMe. Finds which bytes of
// which files hold each parameter, over all ranks and without padding. Reads only headers.
//
// Sources: deepspeed/utils/zero_to_fp32.py for tensors in memory; for swap files, runs of DeepSpeed 0.19.8:
//  - a checkpoint's param_shapes has a dict for each (sub-)group of the optimizer, in the order of its parameters;
//  - stage 3: each rank holds ceil(elements / ranks) of each parameter, back to back, and the last part is padded;
//  - stages 1 and 2: all parameters of a group are laid end to end, and each rank holds one part of that;
//  - a group is named by the ds_ids of its first and last parameter. A swap file of that name has the right content,
//    whatever optim_states.pt contains: pipelined runs leave recycled buffers there.
//
// A model may be spread over ranks: stages of a pipeline (deepspeed_pipeline.h), experts (deepspeed_experts.h), tensor
// parallelism (tensor_parallel.h). Several of these at once are not read; that is reported as a problem.
#pragma once

#include <string>
#include <string_view>

#include "meta/formats/completeness_judgement.h"
#include "meta/formats/map_budget.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Returns true if a file of that name belongs to such a checkpoint: "mp_rank_00_model_states.pt",
// "offloaded_tensors/...".
bool is_deepspeed_file(std::string_view path);
// Returns true if `folder` of the step ("" or "global_step4/") has such a checkpoint.
bool is_deepspeed(const StepFiles& files, const std::string& folder);

// The problem that a step has which was saved so, with exclude_frozen_parameters.
inline constexpr const char* kExcludesFrozen = "it was saved without the frozen parameters, if there are any";

// Parts that cannot be read are listed as problems, and everything else is in the map.
TensorMap read_deepspeed(const StepFiles& files, const std::string& folder, const MapOptions& options = {});

// Checks the files of the ranks that wrote here, and tells which files the other ranks have to have. With node-local
// storage the ranks of each machine name their swap folders from rank00 on: the k-th folder is of the k-th rank that
// has other files here. `alone`: what such a step of node-local storage lacks cannot be decided here.
ShareCheck check_deepspeed(const StepFiles& files, const std::string& folder, bool alone = false);

}  // namespace ckptfs::meta::formats

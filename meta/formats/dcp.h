// Reads what PyTorch's distributed checkpoint (DCP) wrote: folders with a ".metadata", a pickle that tells the shape of
// each tensor and where its chunks lie, and the files of the ranks, in which each chunk is as torch.save writes it.
//
// Format: torch/distributed/checkpoint/metadata.py (Metadata, MetadataIndex), filesystem.py (_StorageInfo),
// default_planner.py (planner_data: the keys that lead to a tensor in the nested dict that was saved).
//
// What belongs to which parameter is told by these keys: the model's lie under "model" (or "module", "state_dict"), or
// at the top where there is none of these; the optimizer's states are "state", the parameter's name, the state's name,
// in three keys or joined by dots, as torch.distributed.checkpoint.state_dict leaves them. Other tensors are shown by
// all their keys.
#pragma once

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Of each folder that has a ".metadata": the step's own and those in it (accelerate writes two). Without any: empty.
TensorMap read_dcp(const StepFiles& files);

}  // namespace ckptfs::meta::formats

// Reads PyTorch's distributed checkpoints (DCP). A folder of one has a ".metadata", a pickle with the shape of each
// tensor and the places of its chunks, and the files of the ranks, in which each chunk is in the format of torch.save.
//
// Format: torch/distributed/checkpoint/metadata.py (Metadata, MetadataIndex), filesystem.py (_StorageInfo),
// default_planner.py (planner_data: the keys that lead to a tensor in the nested dict that was saved).
//
// Which parameter a tensor belongs to: state_dict.h. With MapOptions::saved_names it is not asked.
#pragma once

#include "meta/formats/completeness_judgement.h"
#include "meta/formats/map_budget.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Reads each folder that has a ".metadata": the step's own and its subfolders (accelerate writes two). If there is
// none, the map is empty.
TensorMap read_dcp(const StepFiles& files, const MapOptions& options = {});

// Compares the files with what each ".metadata" demands. The tensors are not read.
ShareCheck check_dcp(const StepFiles& files);

}  // namespace ckptfs::meta::formats

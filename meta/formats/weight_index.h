// The index of weights that lie in several files, as transformers and accelerate write it:
// "model.safetensors.index.json", "pytorch_model.bin.index.json".
//   {"metadata": {...}, "weight_map": {"layers.0.weight": "model-00001-of-00002.safetensors", ...}}
// Stateless.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "io/result.h"
#include "meta/formats/completeness_judgement.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// The files that the index names. EBADMSG, in words: it is none. EFBIG: it exceeds the bounds.
Result<std::set<std::string>> files_of_index(const StepFiles& files, uint32_t index);
// The files that the indexes of the step demand, and that are not there. An index demands nothing if the weights are
// there in one file, too: loaders take that one.
void check_weight_indexes(const StepFiles& files, bool in_folders, ShareCheck& share);

}  // namespace ckptfs::meta::formats

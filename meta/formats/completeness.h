// Whether all files of a checkpoint are there, by its kind: DeepSpeed's, a Hugging Face Trainer's
// (with DeepSpeed's in it, or without), PyTorch's DCP; and whatever was saved through us, by its manifests. Pure
// functions. Whether somebody still writes to it is another question.
#pragma once

#include <string>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// unknown: nobody can tell; a rule neither counts nor removes it.
enum class Completeness { complete, incomplete, unknown };

struct CompletenessJudgement {
  Completeness completeness = Completeness::unknown;
  std::string reason;  // why it is not complete: the first thing that is missing, or what cannot be told
};
// `map`: as read_checkpoint() found it.
CompletenessJudgement judge_completeness(const StepFiles& files, const TensorMap& map);

}  // namespace ckptfs::meta::formats

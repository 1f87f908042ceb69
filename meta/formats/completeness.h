// Decides whether all files of a checkpoint are there, by its kind: DeepSpeed's, a Hugging Face Trainer's (with or
// without DeepSpeed's in it), PyTorch's DCP, or one that was saved through libckptfs, which has manifests. Whether
// somebody still writes to the step is not decided here. Stateless.
#pragma once

#include <string>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// unknown: it cannot be decided. Rules neither count nor remove such a step.
enum class Completeness { complete, incomplete, unknown };

struct CompletenessJudgement {
  Completeness completeness = Completeness::unknown;
  std::string reason;  // why it is not complete: the first missing part, or what cannot be decided
};
// `map` is the result of read_checkpoint() for these files.
CompletenessJudgement judge_completeness(const StepFiles& files, const TensorMap& map);

}  // namespace ckptfs::meta::formats

// Decides whether all files of a checkpoint are there, by its kind: DeepSpeed's, a Hugging Face Trainer's (with or
// without DeepSpeed's in it), PyTorch's DCP, or one that was saved through libckptfs, which has manifests. Whether
// somebody still writes to the step is not decided here. Stateless.
#pragma once

#include <optional>
#include <string>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// unknown: it cannot be decided. Rules neither count nor remove such a step. weights: all files of a thinned step are
// there (meta/formats/thinning.h), so it can be read, but no training can resume from it.
enum class Completeness { complete, incomplete, unknown, weights };

// Is nothing missing of what the step is to hold?
inline bool is_whole(Completeness one) { return one == Completeness::complete || one == Completeness::weights; }

struct CompletenessJudgement {
  Completeness completeness = Completeness::unknown;
  std::string reason;  // why it is not complete: the first missing part, or what cannot be decided
};
// Judges a step by the manifest of its thinning. None: it has none, or another step's.
std::optional<CompletenessJudgement> judge_thinned(const StepFiles& files);
// `map` is the result of read_checkpoint() for these files.
CompletenessJudgement judge_completeness(const StepFiles& files, const TensorMap& map);

}  // namespace ckptfs::meta::formats

// Decides whether all files of a checkpoint are there, by its kind: DeepSpeed's, a Hugging Face Trainer's (with or
// without DeepSpeed's in it), PyTorch's DCP, or one that was saved through libckptfs, which has manifests. Whether
// somebody still writes to the step is not decided here. Stateless.
#pragma once

#include <optional>

#include "meta/formats/completeness_judgement.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Judges a step by the manifest of its thinning. None: it has none, or another step's.
std::optional<CompletenessJudgement> judge_thinned(const StepFiles& files);
// `map` is the result of read_checkpoint() for these files.
CompletenessJudgement judge_completeness(const StepFiles& files, const TensorMap& map);

// Whether the files at the top were written to their ends, as those of a Trainer's checkpoint have to be.
ShareCheck check_trainer_ends(const StepFiles& files);

// The files that the other steps of a series have: they tell what the writer of the series writes.
struct SiblingFiles {
  bool trainer_state = false;
  bool of_same_trainer = false;  // one with trainer_state.json was written by a process that wrote this step
  bool dcp_metadata = false;
  bool first_model_states = false;  // DeepSpeed's, of rank 0
};
// Of a step whose writers have ended, so that what it lacks it will never get. `judged`: as above. Where that leaves it
// unknown, a file that was cut off makes it incomplete, and the lack of weights, or of a file that each step of its
// writer has. A step that may lie on several machines is unknown.
CompletenessJudgement judge_abandoned(const StepFiles& files, const CompletenessJudgement& judged,
                                      const SiblingFiles& siblings);

}  // namespace ckptfs::meta::formats

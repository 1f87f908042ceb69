// What one machine can tell of whether a step is complete, when other machines hold other files of it: facts that are
// put together later, without reading the files again.
//
// A file may demand others: a rank's manifest those of its rank and the other manifests, DeepSpeed's model_states.pt
// those of all ranks, DCP's .metadata those of all ranks, with their lengths. What is demanded and not here becomes a
// fact (ShareCheck::missing), and is looked for among the files of all machines. What is wrong with a file that is here
// is a fact, too: no other machine can mend it. Facts are kept by what they come from, because which of them count
// depends on the kind of the step, and that follows from the names on all machines.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "io/result.h"
#include "meta/formats/completeness.h"

namespace ckptfs::meta::formats {

struct CompletenessFacts {
  CompletenessJudgement own;  // of the files here alone
  // Empty if the files here are a Trainer's complete step.
  std::optional<ShareCheck> thinned;  // what the manifest of a thinning tells; none: there is none
  ShareCheck manifests;               // those of ranks that saved through libckptfs
  ShareCheck states;                  // DeepSpeed's, or DCP's
  ShareCheck trainer;                 // the ends of the files at the top
  bool operator==(const CompletenessFacts&) const = default;
};

// `map` is the result of read_checkpoint() for these files.
CompletenessFacts completeness_facts(const StepFiles& files, const TensorMap& map);

nlohmann::json json_of(const CompletenessFacts& facts);
// EBADMSG, in words. The JSON may be anybody's.
Result<CompletenessFacts> facts_of(const nlohmann::json& json);

// Judges a step by the facts of all machines that hold files of it, and by all its files. With one machine that is what
// judge_completeness() said. Otherwise a file that is not among them is nowhere, so what could lie elsewhere for
// judge_completeness() is missing here.
CompletenessJudgement judge_together(const std::vector<const CompletenessFacts*>& facts,
                                     const std::vector<StepFiles::File>& files);

}  // namespace ckptfs::meta::formats

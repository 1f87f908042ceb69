// What the names of a step's files tell of its kind, and how a step of that kind is judged. Stateless.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "meta/formats/completeness_judgement.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// In a Trainer's step it names DeepSpeed's folder.
inline constexpr std::string_view kInnerLatest = "latest";

struct StepNames {
  bool trainer_state = false;
  bool begun_by_trainer = false;  // files are there that a Trainer writes into checkpoints only
  bool lost_weights = false;      // of what a Trainer writes, all is there but what may be weights
  bool model_alone = false;       // a file may hold weights, and none is for a resume only
  bool no_weights = false;        // no file is known to hold weights
  bool no_optimizer = false;      // beside a scheduler's state
  std::optional<size_t> weights;  // of which names a Trainer's are; none: of none that it gives
  bool no_inner_latest = false;   // beside DeepSpeed's folder
  bool manifests = false;         // of ranks that saved through libckptfs
  bool lacks_part = false;        // a part was begun through libckptfs, and never committed
  // DeepSpeed's states, in the step or in a folder of it.
  bool deepspeed = false;
  bool deepspeed_at_top = false;
  bool model_states = false;
  bool first_model_states = false;  // of rank 0
  // DCP, likewise.
  bool dcp_metadata = false;
  bool lacks_dcp_metadata = false;  // of a folder with files of ranks
};
// `paths`: relative to the step.
StepNames names_of(const std::vector<std::string_view>& paths);
StepNames names_of(const std::vector<StepFiles::File>& files);

// Does a path lie directly in the step?
inline bool is_at_top_of_step(std::string_view path) { return path.find('/') == std::string_view::npos; }

// Does each save of such a step write the file anew? All others are notes (texts, results of an evaluation, logs), left
// over, or what a converter made of the step.
bool is_checkpoint_file(const StepNames& names, std::string_view path);
// Is it written before others, so that who has written it anew has begun a save?
bool is_written_first(const StepNames& names, std::string_view path);

// How the files of each kind are judged. Only those of the kinds that count are asked.
struct KindJudges {
  std::function<CompletenessJudgement()> manifests;
  std::function<CompletenessJudgement()> states;        // DeepSpeed's or DCP's
  std::function<CompletenessJudgement()> trainer_ends;  // of the files at the top: were they written to their ends?
};
// Judges a step that was not thinned. `all_machines`: these are the names of all machines' files, so that what is not
// among them is nowhere.
CompletenessJudgement judge_by_names(const StepNames& names, const KindJudges& judges, bool all_machines);

}  // namespace ckptfs::meta::formats

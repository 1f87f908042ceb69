// What the names of a step's files tell of it (file_kinds.h), and how a step of that kind is judged. Stateless.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "meta/formats/completeness_judgement.h"
#include "meta/formats/file_kinds.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// A file that lies deeper than in a folder of the step is of no kind that is read.
struct StepNames {
  FileRoles top;                    // of the files at the top of the step
  FileRoles files;                  // likewise, with those in its folders
  std::optional<FileRole> weights;  // a Trainer's: the best of those at the top; none: of none that it gives
  bool first_rank = false;          // rank 0 of DeepSpeed has a file
  bool first_model_states = false;  // namely that of its model
  bool may_hold_weights = false;    // a file may; so may what is not known
  bool holds_weights = false;       // a file is known to
  bool holds_model = false;         // by its name it is of a model: what else there may be tells nothing of that
  std::string lacks_demanded;       // a file that is not there, and that one which is there demands
  std::string in_doubt;             // in words, what else speaks against a whole step
  bool weights_beside = false;      // files of weights lie in folders
  bool megatron = false;            // ".metadata", "common.pt" and "metadata.json" in one folder
  bool olmo = false;                // "model_and_optim/"
  bool fsdp = false;                // "pytorch_model_fsdp_0/": a Trainer's or accelerate's
  bool shows_optimizer = false;     // a name tells of an optimizer's state
  bool shows_trainer = false;       // a file is there that a Trainer writes beside weights
  bool model_alone = false;         // a file may hold weights, and none is for a resume only
  bool lacks_part = false;          // a part was begun through libckptfs, and never committed
  bool lacks_dcp_metadata = false;  // of a folder with files of ranks

  bool has(FileRole role) const { return files[static_cast<size_t>(role)]; }
  bool has_at_top(FileRole role) const { return top[static_cast<size_t>(role)]; }
  bool trainer_state() const { return has_at_top(FileRole::trainer_state); }
  // Its own states lie in folders, never at the top.
  bool accelerate() const {
    return has_at_top(FileRole::random_states) && !manifests() && !deepspeed_at_top() &&
           !has_at_top(FileRole::dcp_metadata);
  }
  // Of DCP's, with files of Lightning, Megatron or OLMo-core beside that are as needed.
  bool more_than_dcp() const { return has_at_top(FileRole::lightning) || megatron || olmo || weights_beside; }
  bool manifests() const { return has_at_top(FileRole::rank_manifest); }
  // Does a file tell which files belong to the step?
  bool tells_files() const {
    return trainer_state() || accelerate() || manifests() || deepspeed() || has(FileRole::dcp_metadata);
  }
  bool deepspeed() const { return has(FileRole::model_states) || has(FileRole::optim_states); }
  bool deepspeed_at_top() const { return has_at_top(FileRole::model_states) || has_at_top(FileRole::optim_states); }
};
StepNames names_of(const std::vector<StepFiles::File>& files);

// Does each save of such a step write the file anew? All others are notes (texts, results of an evaluation, logs), left
// over, or what a converter made of the step.
bool is_checkpoint_file(const StepNames& names, std::string_view path);
// Is it written before others, so that who has written it anew has begun a save?
bool is_written_first(const StepNames& names, std::string_view path);

// Of DCP's, if Lightning has saved it, which calls its steps *.ckpt: meta.pt comes after .metadata.
inline bool lacks_meta_of_lightning(const StepNames& names) {
  return names.has_at_top(FileRole::dcp_metadata) && !names.has_at_top(FileRole::lightning);
}

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

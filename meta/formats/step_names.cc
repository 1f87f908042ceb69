#include "meta/formats/step_names.h"

#include <algorithm>
#include <set>
#include <string>

#include "meta/formats/demands.h"
#include "meta/formats/manifest.h"
#include "meta/formats/trainer_state.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

// training_args.bin alone is no sign, because a Trainer saves it with every model. The others are only in checkpoints.
// trainer_state.json is written last.
bool is_begun_by_trainer(const StepNames& names) {
  const bool of_checkpoint = names.has_at_top(FileRole::optimizer) || names.has_at_top(FileRole::scheduler) ||
                             names.has_at_top(FileRole::rng_state);
  return names.has_at_top(FileRole::arguments) && of_checkpoint && !names.trainer_state();
}

// "partial-5f3a-global_step500/..." is there, and "global_step500/ckptfs.rank00.json" is not. Its save is still
// running, or has failed.
bool lacks_committed_part(const std::vector<StepFiles::File>& files) {
  std::set<std::string_view> attempts, committed;
  for (const StepFiles::File& file : files) {
    const std::string_view path = file.path;
    const std::string_view folder = path.substr(0, path.find('/'));
    if (folder.size() == path.size()) continue;
    if (is_manifest_name(path.substr(folder.size() + 1))) committed.insert(folder);
    if (is_partial_name(folder)) attempts.insert(folder);
  }
  return std::ranges::any_of(attempts, [&](std::string_view attempt) {
    return std::ranges::none_of(tags_of_partial(attempt),
                                [&](std::string_view tag) { return committed.contains(tag); });
  });
}

// "optimizer.pt", "optimizer.bin", "optimizer_0/", Automodel's "optim/"
bool is_of_optimizer(std::string_view path) { return path.starts_with("optimizer") || path.starts_with("optim/"); }

CompletenessJudgement judge_trainers(const StepNames& names, const KindJudges& judges) {
  CompletenessJudgement ends = judges.trainer_ends();
  if (ends.completeness != Completeness::complete) return ends;
  // A Trainer writes the weights first. So a step without them has lost them: somebody has begun to remove it.
  if (names.shows_trainer && !names.may_hold_weights) return lacking("a file of weights");
  if (!names.holds_weights) return {Completeness::unknown, "no file of it is known to hold weights"};
  if (names.deepspeed() && !names.deepspeed_at_top() && !names.has_at_top(FileRole::inner_latest))
    return {Completeness::unknown, "it has no file `latest`, which names DeepSpeed's folder"};
  // A Trainer that saves its scheduler saves its optimizer, too.
  if (names.has_at_top(FileRole::scheduler) && !names.shows_optimizer && !names.has_at_top(FileRole::dcp_metadata))
    return {Completeness::unknown, "it has the scheduler's state, and no optimizer's"};
  const bool adapter = names.weights == FileRole::adapter_safetensors || names.weights == FileRole::adapter_bin;
  if (adapter && !names.has_at_top(FileRole::adapter_config))
    return {Completeness::unknown, "it has an adapter, and no adapter_config.json"};
  // Of a model of several files transformers has written config.json first.
  if (!adapter && names.has_at_top(FileRole::weights_index) && !names.has_at_top(FileRole::config))
    return {Completeness::unknown, "it has a model in several files, and no config.json"};
  return ends;
}

// accelerate's save_state() writes the weights first, then the optimizer, the scheduler, and what is random in each
// rank. Source: accelerate/accelerator.py, checkpointing.py
CompletenessJudgement judge_accelerates(const StepNames& names, const KindJudges& judges) {
  CompletenessJudgement ends = judges.trainer_ends();
  if (ends.completeness != Completeness::complete) return ends;
  if (!names.holds_model && !names.holds_weights) return lacking("a file of weights");
  if (!names.holds_model) return {Completeness::unknown, "no file of it is known to hold its model"};
  if (!names.shows_optimizer) return {Completeness::unknown, "it has no optimizer's state"};
  if (names.deepspeed() && !names.has_at_top(FileRole::inner_latest))
    return {Completeness::unknown, "it has no file `latest`, which names DeepSpeed's folder"};
  return ends;
}

CompletenessJudgement judge_deepspeeds(const StepNames& names, const KindJudges& judges, bool all_machines) {
  if (!names.deepspeed_at_top() && !names.trainer_state() && !names.accelerate())
    return {Completeness::unknown, "DeepSpeed's files lie in a folder, and no Trainer's beside"};
  if (!names.has(FileRole::model_states)) return {Completeness::incomplete, "there is no model_states.pt"};
  // The other ranks may have written to other machines (use_node_local_storage).
  if (!names.first_model_states && all_machines) return lacking("model_states.pt of rank 0");
  if (!names.first_model_states) return {Completeness::unknown, "rank 0 has no model_states.pt here"};
  return judges.states();
}

}  // namespace

StepNames names_of(const std::vector<StepFiles::File>& files) {
  StepNames names;
  DcpFolders folders;
  RankPickles ranks;
  Demands demands;
  Shards shards;
  MegatronFolders megatron;
  bool resume = false, model = false;
  for (const StepFiles::File& file : files) {
    const std::string_view path = file.path;
    const FileKind kind = kind_of(path);
    if (kind.folders == 0) names.top.set(static_cast<size_t>(kind.role));
    if (kind.folders <= 1) names.files.set(static_cast<size_t>(kind.role));
    names.first_rank = names.first_rank || (kind.folders <= 1 && kind.states && kind.states->rank.value_or(0) == 0);
    names.first_model_states = names.first_model_states || (kind.folders <= 1 && kind.is_first_model_states());
    names.may_hold_weights = names.may_hold_weights || kind.may_hold_weights();
    names.holds_weights = names.holds_weights || (kind.holds_weights() && !is_of_optimizer(path));
    names.shows_trainer = names.shows_trainer || kind.role == FileRole::arguments || kind.is_resume_state();
    const std::string_view last = path.substr(path.rfind('/') + 1);
    const bool indexed = kind.role >= FileRole::adapter_safetensors && kind.role <= FileRole::model_bin;
    names.holds_model = names.holds_model || indexed || kind.role == FileRole::other_safetensors ||
                        kind.role == FileRole::model_states || path.starts_with("pytorch_model") ||
                        (last.ends_with(".bin") && kind.role == FileRole::other_weights);
    names.fsdp = names.fsdp || path.starts_with("pytorch_model_fsdp_");
    names.shows_optimizer = names.shows_optimizer || kind.states || is_of_optimizer(path);
    resume = resume || kind.is_resume_state() || path.starts_with("pytorch_model_fsdp");
    model = model || (kind.may_hold_weights() && kind.role != FileRole::temporary);
    folders.note(kind, path);
    demands.note(path);
    shards.note(kind, path);
    megatron.note(path);
    names.weights_beside = names.weights_beside || (kind.folders >= 1 && kind.role >= FileRole::adapter_safetensors &&
                                                    kind.role <= FileRole::other_safetensors);
    if (kind.role == FileRole::rank_pickle) ranks.note(path);
  }
  names.model_alone = model && !resume && !names.shows_optimizer;
  names.lacks_dcp_metadata = folders.lack_metadata();
  names.megatron = megatron.any();
  names.olmo = demands.has_olmo();
  names.lacks_demanded = demands.first_missing(names.accelerate());
  names.in_doubt = ranks.doubt();
  const bool others_tell = names.deepspeed() || names.has_at_top(FileRole::dcp_metadata);
  if (names.in_doubt.empty() && !others_tell) names.in_doubt = shards.first_missing(!names.trainer_state());
  names.lacks_part = lacks_committed_part(files);
  for (const FileRole role :
       {FileRole::model_bin, FileRole::model_safetensors, FileRole::adapter_bin, FileRole::adapter_safetensors}) {
    if (names.has_at_top(role)) names.weights = role;
  }
  return names;
}

// Who saves through libckptfs writes to an attempt, which takes the step's place as a whole. Of DCP's files .metadata
// alone tells, and of a Trainer's not the states of ranks: those of more ranks than there are now are left over.
bool is_checkpoint_file(const StepNames& names, std::string_view path) {
  if (names.manifests()) return false;
  const FileKind kind = kind_of(path);
  if (kind.role == FileRole::rank_pickle) return true;
  // The layers of pipelines and experts have files of their own, which DeepSpeed writes first.
  const bool states = kind.states || kind.role == FileRole::other_states;
  if (names.deepspeed() && (states || kind.role == FileRole::swap_file)) return true;
  if (names.has(FileRole::dcp_metadata) && is_dcp_description(kind.role)) return true;
  if (!names.trainer_state() && !names.accelerate()) return false;
  if (kind.role == FileRole::trainer_state || kind.role == FileRole::random_states) return true;
  if (kind.role == FileRole::optimizer) return true;
  return !names.deepspeed() && !names.has(FileRole::dcp_metadata) && kind.role == names.weights;
}

bool is_written_first(const StepNames& names, std::string_view path) {
  const FileRole role = kind_of(path).role;
  if (names.has(FileRole::dcp_metadata) && role == FileRole::dcp_data) return true;
  const bool last = role == FileRole::trainer_state || role == FileRole::random_states || is_dcp_description(role);
  return !last && is_checkpoint_file(names, path);
}

CompletenessJudgement judge_by_names(const StepNames& names, const KindJudges& judges, bool all_machines) {
  const auto is_complete = [](const CompletenessJudgement& one) { return one.completeness == Completeness::complete; };
  if (names.lacks_part) return {Completeness::incomplete, "a part of it was not committed"};
  if (names.manifests()) {
    CompletenessJudgement manifests = judges.manifests();
    if (!is_complete(manifests)) return manifests;
  }
  if (is_begun_by_trainer(names)) return lacking(kTrainerStateName);
  if (!names.lacks_demanded.empty() && !names.trainer_state()) {
    return all_machines ? lacking(names.lacks_demanded)
                        : CompletenessJudgement{Completeness::unknown, names.lacks_demanded + " is not there"};
  }
  if (!names.in_doubt.empty()) return {Completeness::unknown, names.in_doubt};
  // DCP writes .metadata last, on one machine.
  if (all_machines && names.lacks_dcp_metadata) return lacking(".metadata");
  if (names.lacks_dcp_metadata && (names.has(FileRole::dcp_metadata) || names.trainer_state()))
    return {Completeness::unknown, "a folder of it has no .metadata, which another machine may have"};
  if (names.deepspeed() || names.has(FileRole::dcp_metadata)) {
    if (!names.holds_weights) return {Completeness::unknown, "it has an optimizer's state, and no weights"};
    CompletenessJudgement states = names.deepspeed() ? judge_deepspeeds(names, judges, all_machines) : judges.states();
    if (!is_complete(states)) return states;
    if (names.trainer_state()) return judge_trainers(names, judges);
    if (names.accelerate()) return judge_accelerates(names, judges);
    if (names.fsdp) return {Completeness::unknown, "no file tells that its save has ended"};
    if (names.deepspeed() || !names.more_than_dcp()) return states;
    // A file that is cut off may be a converter's, of which the step knows nothing.
    const CompletenessJudgement ends = judges.trainer_ends();
    return is_complete(ends) ? states : CompletenessJudgement{Completeness::unknown, ends.reason};
  }
  if (names.trainer_state()) return judge_trainers(names, judges);
  if (names.accelerate()) return judge_accelerates(names, judges);
  if (names.manifests()) return {Completeness::complete, {}};
  if (names.has(FileRole::rank_pickle)) return judges.trainer_ends();
  return {Completeness::unknown, "no file tells which files belong to it; the rule complete_when can"};
}

}  // namespace ckptfs::meta::formats

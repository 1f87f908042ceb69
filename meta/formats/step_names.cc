#include "meta/formats/step_names.h"

#include <algorithm>
#include <set>
#include <string>

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

bool is_dcp_description(FileRole role) { return role == FileRole::dcp_metadata || role == FileRole::dcp_rank_metadata; }

// Folders with files of DCP, and which of them have a .metadata.
struct DcpFolders {
  std::set<std::string_view> described, used;
  void note(const FileKind& kind, std::string_view path) {
    if (kind.folders > 1) return;
    const std::string_view folder = path.substr(0, path.rfind('/') + 1);
    if (is_dcp_description(kind.role)) described.insert(folder);
    if (kind.role == FileRole::dcp_data) used.insert(folder);
  }
  bool lack_metadata() const { return !std::ranges::includes(described, used); }
};

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

CompletenessJudgement judge_deepspeeds(const StepNames& names, const KindJudges& judges, bool all_machines) {
  if (!names.deepspeed_at_top() && !names.trainer_state())
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
  bool resume = false, model = false;
  for (const StepFiles::File& file : files) {
    const std::string_view path = file.path;
    const FileKind kind = kind_of(path);
    if (kind.folders == 0) names.top.set(static_cast<size_t>(kind.role));
    if (kind.folders <= 1) names.files.set(static_cast<size_t>(kind.role));
    names.first_rank = names.first_rank || (kind.folders <= 1 && kind.states && kind.states->rank.value_or(0) == 0);
    names.first_model_states = names.first_model_states || (kind.folders <= 1 && kind.is_first_model_states());
    names.may_hold_weights = names.may_hold_weights || kind.may_hold_weights();
    names.holds_weights = names.holds_weights || (kind.holds_weights() && !path.starts_with("optimizer"));
    names.shows_trainer = names.shows_trainer || kind.role == FileRole::arguments || kind.is_resume_state();
    // "optimizer.pt", "optimizer.bin", "optimizer_0/"
    names.shows_optimizer = names.shows_optimizer || kind.states || path.starts_with("optimizer");
    resume = resume || kind.is_resume_state() || path.starts_with("pytorch_model_fsdp");
    model = model || (kind.may_hold_weights() && kind.role != FileRole::temporary);
    folders.note(kind, path);
  }
  names.model_alone = model && !resume && !names.shows_optimizer;
  names.lacks_dcp_metadata = folders.lack_metadata();
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
  if (names.deepspeed() && (kind.states || kind.role == FileRole::swap_file)) return true;
  if (names.has(FileRole::dcp_metadata) && is_dcp_description(kind.role)) return true;
  if (!names.trainer_state()) return false;
  if (kind.role == FileRole::trainer_state || kind.role == FileRole::optimizer) return true;
  return !names.deepspeed() && !names.has(FileRole::dcp_metadata) && kind.role == names.weights;
}

bool is_written_first(const StepNames& names, std::string_view path) {
  const FileRole role = kind_of(path).role;
  if (names.has(FileRole::dcp_metadata) && role == FileRole::dcp_data) return true;
  return role != FileRole::trainer_state && !is_dcp_description(role) && is_checkpoint_file(names, path);
}

CompletenessJudgement judge_by_names(const StepNames& names, const KindJudges& judges, bool all_machines) {
  const auto is_complete = [](const CompletenessJudgement& one) { return one.completeness == Completeness::complete; };
  if (names.lacks_part) return {Completeness::incomplete, "a part of it was not committed"};
  if (names.manifests()) {
    CompletenessJudgement manifests = judges.manifests();
    if (!is_complete(manifests)) return manifests;
  }
  if (is_begun_by_trainer(names)) return lacking(kTrainerStateName);
  // DCP writes .metadata last, on one machine.
  if (all_machines && names.lacks_dcp_metadata) return lacking(".metadata");
  if (names.lacks_dcp_metadata && (names.has(FileRole::dcp_metadata) || names.trainer_state()))
    return {Completeness::unknown, "a folder of it has no .metadata, which another machine may have"};
  if (names.deepspeed() || names.has(FileRole::dcp_metadata)) {
    if (!names.holds_weights) return {Completeness::unknown, "it has an optimizer's state, and no weights"};
    CompletenessJudgement states = names.deepspeed() ? judge_deepspeeds(names, judges, all_machines) : judges.states();
    return is_complete(states) && names.trainer_state() ? judge_trainers(names, judges) : states;
  }
  if (names.trainer_state()) return judge_trainers(names, judges);
  if (names.manifests()) return {Completeness::complete, {}};
  return {Completeness::unknown, "no file tells which files belong to it"};
}

}  // namespace ckptfs::meta::formats

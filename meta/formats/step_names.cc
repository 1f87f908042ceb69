#include "meta/formats/step_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "meta/formats/deepspeed_names.h"
#include "meta/formats/manifest.h"
#include "meta/formats/thinning.h"
#include "meta/formats/trainer_state.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

using StepPaths = std::vector<std::string_view>;

constexpr std::string_view kTrainerArguments = "training_args.bin";
constexpr std::string_view kMetadataEnding = ".metadata";

std::string_view folder_of(std::string_view path) { return path.substr(0, path.rfind('/') + 1); }
bool is_deep(std::string_view path) { return std::ranges::count(path, '/') > 1; }

// training_args.bin alone is no sign, because a Trainer saves it with every model. The other files are only in
// checkpoints. trainer_state.json is written last.
bool is_begun_by_trainer(const StepPaths& paths) {
  const auto is_of_checkpoint = [](std::string_view path) {
    return path == "optimizer.pt" || path == "scheduler.pt" ||
           (is_at_top_of_step(path) && path.starts_with("rng_state"));
  };
  return std::ranges::count(paths, kTrainerArguments) != 0 && std::ranges::any_of(paths, is_of_checkpoint);
}

bool is_of_trainer(std::string_view path) { return path == kTrainerArguments || is_resume_state_name(path); }

bool may_hold_weights(std::string_view path) {
  constexpr std::array<std::string_view, 4> kTexts{".json", ".txt", ".md", ".jinja"};
  const bool none =
      is_at_top_of_step(path) && (is_of_trainer(path) || path == "tokenizer.model" ||
                                  std::ranges::any_of(kTexts, [&](auto end) { return path.ends_with(end); }));
  return !none;
}

// A Trainer writes the weights first, so a checkpoint that holds nothing but its other files has lost them: somebody
// has begun to remove it. A file of a name that is not known here may hold weights.
bool has_lost_weights(const StepPaths& paths) {
  return std::ranges::any_of(paths, is_of_trainer) && std::ranges::none_of(paths, may_hold_weights);
}

// safetensors writes ".tmpAb12Cd" first, and renames it.
bool is_temporary(std::string_view path) { return path.substr(path.rfind('/') + 1).starts_with(".tmp"); }

bool shows_a_resume(std::string_view path) {
  return is_resume_state_name(path) || parse_states_name(path.substr(folder_of(path).size())) ||
         path.starts_with("optimizer") || path.starts_with("pytorch_model_fsdp");
}

bool is_model_alone(const StepPaths& paths) {
  const auto is_weights = [](std::string_view path) { return may_hold_weights(path) && !is_temporary(path); };
  return std::ranges::any_of(paths, is_weights) && std::ranges::none_of(paths, shows_a_resume);
}

bool is_known_to_hold_weights(std::string_view path) {
  constexpr std::array<std::string_view, 12> kEndings{".safetensors", ".bin",     ".pt",   ".pth", ".ckpt", ".distcp",
                                                      ".h5",          ".msgpack", ".gguf", ".npz", ".pkl",  ".swp"};
  return path != kTrainerArguments && !is_resume_state_name(path) &&
         std::ranges::any_of(kEndings, [&](auto ending) { return path.ends_with(ending); });
}

// As transformers and peft name a model's weights: "BEGINNING.ENDING" or "BEGINNING-00001-of-00002.ENDING". Other names
// are those of converters.
bool is_of_weights(std::string_view path, std::string_view beginning, std::string_view ending) {
  if (!path.starts_with(beginning) || !path.ends_with(ending)) return false;
  const std::string_view shard = path.substr(beginning.size(), path.size() - beginning.size() - ending.size());
  return shard.empty() || (shard.starts_with('-') && shard.find("-of-") != shard.npos);
}

// The first of them that a step has is what it was saved as; what else there is was made of it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kWeights{{{"adapter_model", ".safetensors"},
                                                                                 {"adapter_model", ".bin"},
                                                                                 {"model", ".safetensors"},
                                                                                 {"pytorch_model", ".bin"}}};

std::optional<size_t> find_weights(const StepPaths& paths) {
  for (size_t at = 0; at < kWeights.size(); ++at) {
    const auto& names = kWeights.at(at);
    const auto is_one = [&names](auto path) { return is_of_weights(path, names.first, names.second); };
    if (std::ranges::any_of(paths, is_one)) return at;
  }
  return std::nullopt;
}

// A Trainer that saves its scheduler saves its optimizer, too: "optimizer.pt", "optimizer.bin", "optimizer_0/".
bool has_lost_optimizer(const StepPaths& paths) {
  const bool scheduler = std::ranges::any_of(
      paths, [](std::string_view path) { return path == "scheduler.pt" || path == "scheduler.bin"; });
  const auto is_optimizer = [](std::string_view path) {
    return path.starts_with("optimizer") || path == kMetadataEnding ||
           parse_states_name(path.substr(path.rfind('/') + 1)).has_value();
  };
  return scheduler && std::ranges::none_of(paths, is_optimizer);
}

// "partial-5f3a-global_step500/..." is there, and "global_step500/ckptfs.rank00.json" is not. Its save is still
// running, or has failed.
bool lacks_committed_part(const StepPaths& paths) {
  std::set<std::string_view> attempts, committed;
  for (const std::string_view path : paths) {
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

void note_deepspeed(StepNames& names, std::string_view path) {
  const auto states = parse_states_name(path.substr(folder_of(path).size()));
  if (!states) return;
  names.deepspeed = true;
  names.deepspeed_at_top = names.deepspeed_at_top || is_at_top_of_step(path);
  if (states->kind != StatesName::Kind::model) return;
  names.model_states = true;
  names.first_model_states = names.first_model_states || states->rank.value_or(0) == 0;
}

void note_dcp(StepNames& names, const StepPaths& paths) {
  std::set<std::string_view> described, used;  // folders
  for (const std::string_view path : paths) {
    if (is_deep(path)) continue;
    const std::string_view folder = folder_of(path), name = path.substr(folder.size());
    names.dcp_metadata = names.dcp_metadata || name == kMetadataEnding;
    // Some writers name it "__0.metadata".
    if (name.ends_with(kMetadataEnding)) described.insert(folder);
    if (name.ends_with(".distcp")) used.insert(folder);
  }
  names.lacks_dcp_metadata = std::ranges::any_of(used, [&](auto folder) { return !described.contains(folder); });
}

CompletenessJudgement lacking_file(std::string_view file) {
  return {Completeness::incomplete, std::string(file) + " is not there"};
}

CompletenessJudgement judge_trainers(const StepNames& names, const KindJudges& judges) {
  CompletenessJudgement ends = judges.trainer_ends();
  if (ends.completeness != Completeness::complete) return ends;
  if (names.lost_weights) return lacking_file("a file of weights");
  if (names.no_weights) return {Completeness::unknown, "no file of it is known to hold weights"};
  if (names.no_inner_latest) return {Completeness::unknown, "it has no file `latest`, which names DeepSpeed's folder"};
  if (names.no_optimizer) return {Completeness::unknown, "it has the scheduler's state, and no optimizer's"};
  return ends;
}

CompletenessJudgement judge_deepspeeds(const StepNames& names, const KindJudges& judges, bool all_machines) {
  if (!names.deepspeed_at_top && !names.trainer_state)
    return {Completeness::unknown, "DeepSpeed's files lie in a folder, and no Trainer's beside"};
  if (!names.model_states) return {Completeness::incomplete, "there is no model_states.pt"};
  // The other ranks may have written to other machines (use_node_local_storage).
  if (!names.first_model_states && all_machines) return lacking_file("model_states.pt of rank 0");
  if (!names.first_model_states) return {Completeness::unknown, "rank 0 has no model_states.pt here"};
  return judges.states();
}

}  // namespace

StepNames names_of(const std::vector<std::string_view>& paths) {
  StepNames names;
  names.trainer_state = std::ranges::count(paths, std::string_view(kTrainerStateName)) != 0;
  names.begun_by_trainer = is_begun_by_trainer(paths);
  names.lost_weights = has_lost_weights(paths);
  names.model_alone = is_model_alone(paths);
  names.no_weights = std::ranges::none_of(paths, is_known_to_hold_weights);
  names.no_optimizer = has_lost_optimizer(paths);
  names.weights = find_weights(paths);
  names.manifests = std::ranges::any_of(paths, is_manifest_name);
  names.lacks_part = lacks_committed_part(paths);
  note_dcp(names, paths);
  for (const std::string_view path : paths) {
    if (!is_deep(path)) note_deepspeed(names, path);
  }
  names.no_inner_latest = names.deepspeed && !names.deepspeed_at_top && std::ranges::count(paths, kInnerLatest) == 0;
  return names;
}

StepNames names_of(const std::vector<StepFiles::File>& files) {
  StepPaths paths;
  for (const StepFiles::File& file : files) paths.emplace_back(file.path);
  return names_of(paths);
}

// Who saves through libckptfs writes to an attempt, which takes the step's place as a whole. Of DCP's files .metadata
// alone tells, and of a Trainer's not the states of ranks: those of more ranks than there are now are left over.
bool is_checkpoint_file(const StepNames& names, std::string_view path) {
  if (names.manifests) return false;
  const std::string_view name = path.substr(folder_of(path).size());
  if (names.deepspeed && (parse_states_name(name) || name.ends_with(".swp"))) return true;
  if (names.dcp_metadata && name.ends_with(kMetadataEnding)) return true;
  if (!names.trainer_state) return false;
  if (path == kTrainerStateName || path == "optimizer.pt" || path == "optimizer.bin") return true;
  if (names.deepspeed || names.dcp_metadata || !names.weights) return false;
  return is_of_weights(path, kWeights.at(*names.weights).first, kWeights.at(*names.weights).second);
}

bool is_written_first(const StepNames& names, std::string_view path) {
  if (names.dcp_metadata && path.ends_with(".distcp")) return true;
  return path != kTrainerStateName && !path.ends_with(kMetadataEnding) && is_checkpoint_file(names, path);
}

CompletenessJudgement judge_by_names(const StepNames& names, const KindJudges& judges, bool all_machines) {
  const auto is_complete = [](const CompletenessJudgement& one) { return one.completeness == Completeness::complete; };
  if (names.lacks_part) return {Completeness::incomplete, "a part of it was not committed"};
  if (names.manifests) {
    CompletenessJudgement manifests = judges.manifests();
    if (!is_complete(manifests)) return manifests;
  }
  if (!names.trainer_state && names.begun_by_trainer) return lacking_file(kTrainerStateName);
  // DCP writes .metadata last, on one machine.
  if (all_machines && names.lacks_dcp_metadata) return lacking_file(kMetadataEnding);
  if (names.lacks_dcp_metadata && (names.dcp_metadata || names.trainer_state))
    return {Completeness::unknown, "a folder of it has no .metadata, which another machine may have"};
  if (names.deepspeed || names.dcp_metadata) {
    CompletenessJudgement states = names.deepspeed ? judge_deepspeeds(names, judges, all_machines) : judges.states();
    return is_complete(states) && names.trainer_state ? judge_trainers(names, judges) : states;
  }
  if (names.trainer_state) return judge_trainers(names, judges);
  if (names.manifests) return {Completeness::complete, {}};
  return {Completeness::unknown, "no file tells which files belong to it"};
}

}  // namespace ckptfs::meta::formats

#include "meta/formats/completeness.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <string_view>

#include "meta/formats/deepspeed_names.h"
#include "meta/formats/manifest.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/thinning.h"
#include "meta/formats/trainer_state.h"
#include "meta/formats/zip_archive.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kTrainerState = kTrainerStateName;
constexpr std::string_view kMetadataName = ".metadata";

std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }
bool is_at_top(std::string_view path) { return path.find('/') == std::string_view::npos; }

template <class Predicate>
bool any_path(const StepFiles& files, const Predicate& predicate) {
  return std::any_of(files.list().begin(), files.list().end(),
                     [&](const StepFiles::File& file) { return predicate(std::string_view(file.path)); });
}

// Returns true if a Trainer has begun this checkpoint. training_args.bin alone is no sign, because a Trainer saves it
// with every model. The other files are only in checkpoints. trainer_state.json is written last.
bool is_begun_by_trainer(const StepFiles& files) {
  const bool arguments = any_path(files, [](std::string_view path) { return path == "training_args.bin"; });
  return arguments && any_path(files, [](std::string_view path) {
           return path == "optimizer.pt" || path == "scheduler.pt" ||
                  (is_at_top(path) && path.starts_with("rng_state"));
         });
}

// The file may be in the step or in a folder of it.
bool is_deepspeed_state(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') <= 1 && parse_states_name(name_of(path)).has_value();
}
bool is_dcp_metadata(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') <= 1 && name_of(path) == kMetadataName;
}

std::string text_of(const Problem& problem) {
  return problem.file.empty() ? problem.reason : problem.file + ": " + problem.reason;
}

CompletenessJudgement lacking(std::string_view file) {
  return {Completeness::incomplete, std::string(file) + " is not there"};
}

// A missing part outweighs one that cannot be read.
CompletenessJudgement judge_problems(const TensorMap& map) {
  const auto first = [&](Problem::Kind kind) {
    return std::find_if(map.problems.begin(), map.problems.end(), [kind](const auto& one) { return one.kind == kind; });
  };
  if (const auto missing = first(Problem::Kind::missing); missing != map.problems.end()) {
    return {Completeness::incomplete, text_of(*missing)};
  }
  if (const auto unreadable = first(Problem::Kind::unreadable); unreadable != map.problems.end()) {
    return {Completeness::unknown, text_of(*unreadable)};
  }
  return {Completeness::complete, {}};
}

// The model_states.pt of rank 0 tells which files there should be.
CompletenessJudgement judge_deepspeed(const StepFiles& files, const TensorMap& map) {
  bool any = false, first = false;
  for (const StepFiles::File& file : files.list()) {
    const auto name = is_deepspeed_state(file.path) ? parse_states_name(name_of(file.path)) : std::nullopt;
    if (!name || name->kind != StatesName::Kind::model) continue;
    any = true;
    first = first || name->rank.value_or(0) == 0;
  }
  if (!any) return {Completeness::incomplete, "there is no model_states.pt"};
  // The other ranks may have written to other machines (use_node_local_storage).
  if (!first) return {Completeness::unknown, "rank 0 has no model_states.pt here"};
  CompletenessJudgement judgement = judge_problems(map);
  if (judgement.completeness == Completeness::complete && map.parameters.empty()) {
    return {Completeness::unknown, "nothing could be read of it"};
  }
  return judgement;
}

// Judges whether a file of weights or states was cut short. Its tensors are not read.
std::optional<CompletenessJudgement> judge_end(const StepFiles& files, uint32_t index, bool is_abandoned = false) {
  const StepFiles::File& file = files.list()[index];
  const bool zip = file.path.ends_with(".pt") || file.path.ends_with(".pth") || file.path.ends_with(".bin");
  const bool safe = file.path.ends_with(".safetensors");
  if (!zip && !safe) return std::nullopt;
  if (file.size == 0) return CompletenessJudgement{Completeness::incomplete, file.path + ": it is empty"};
  const auto opened = files.open(index);
  if (!opened) return CompletenessJudgement{Completeness::unknown, file.path + ": " + opened.error().message()};
  if (safe) {
    const auto header = read_safetensors_header(files.limited(opened.value()));
    // ENOTSUP: a dtype that is not known here
    if (header || header.error().errno_value() == ENOTSUP) return std::nullopt;
    // Nobody will write the tensors that the header places beyond the end, nor the header.
    const bool is_cut = is_abandoned && header.error().errno_value() == EBADMSG;
    return CompletenessJudgement{is_cut ? Completeness::incomplete : Completeness::unknown,
                                 file.path + ": " + header.error().message()};
  }
  const auto archive = ZipArchive::open(files.limited(opened.value()), {0, file.size});
  if (archive || archive.error().errno_value() != ENODATA) return std::nullopt;
  return CompletenessJudgement{Completeness::incomplete, file.path + ": " + archive.error().message()};
}

// A Trainer writes the weights first, so a checkpoint that holds nothing but its other files has lost them: somebody
// has begun to remove it. A file of a name that is not known here may hold weights.
bool has_lost_weights(const StepFiles& files) {
  const auto is_of_trainer = [](std::string_view path) {
    return path == "training_args.bin" || is_resume_state_name(path);
  };
  const auto holds_none = [&](const StepFiles::File& file) {
    constexpr std::array<std::string_view, 4> kTexts{".json", ".txt", ".md", ".jinja"};
    const std::string_view path = file.path;
    return is_at_top(path) && (is_of_trainer(path) || path == "tokenizer.model" ||
                               std::ranges::any_of(kTexts, [&](auto end) { return path.ends_with(end); }));
  };
  return any_path(files, is_of_trainer) && std::ranges::all_of(files.list(), holds_none);
}

// A Trainer writes its state last, but syncs nothing: after a power loss the file may have its name but not its
// content. So the state, and the ends of the other files, are checked, too.
CompletenessJudgement judge_trainer(const StepFiles& files) {
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (!is_at_top(path)) continue;
    if (path == kTrainerState) {
      const auto file = files.open(index);
      const auto whole =
          file ? check_trainer_state(files.limited(file.value()), files.list()[index].size) : file.error();
      const bool cut_short = !whole && whole.error().errno_value() == EBADMSG;
      if (cut_short) return {Completeness::incomplete, path + ": " + whole.error().message()};
      if (!whole) return {Completeness::unknown, path + ": " + whole.error().message()};
    }
    if (auto judgement = judge_end(files, index)) return *std::move(judgement);
  }
  if (has_lost_weights(files)) return lacking("a file of weights");
  return {Completeness::complete, {}};
}

}  // namespace

namespace {

// Returns true if a part of the step was begun through libckptfs but never committed: "partial-5f3a-global_step500/..."
// is there, and "global_step500/ckptfs.rank00.json" is not. Its save is still running, or has failed.
bool lacks_part(const StepFiles& files) {
  std::set<std::string_view> attempts, committed;
  for (const StepFiles::File& file : files.list()) {
    const std::string_view path = file.path, folder = path.substr(0, path.find('/'));
    if (folder.size() == path.size()) continue;
    if (is_manifest_name(path.substr(folder.size() + 1))) committed.insert(folder);
    if (is_partial_name(folder)) attempts.insert(folder);
  }
  return std::any_of(attempts.begin(), attempts.end(), [&](std::string_view attempt) {
    return std::ranges::none_of(tags_of_partial(attempt),
                                [&](std::string_view tag) { return committed.contains(tag); });
  });
}

// Judges by the manifests of the ranks. Returns nothing if there is none.
std::optional<CompletenessJudgement> judge_manifests(const StepFiles& files) {
  if (!any_path(files, is_manifest_name)) return std::nullopt;
  const Attendance attendance = check_manifests(files);
  if (attendance.complete()) return CompletenessJudgement{Completeness::complete, {}};
  return CompletenessJudgement{Completeness::incomplete, attendance.reason};
}

CompletenessJudgement judge_by_kind(const StepFiles& files, const TensorMap& map) {
  if (const auto thinned = judge_thinned(files)) return *thinned;
  if (lacks_part(files)) return {Completeness::incomplete, "a part of it was not committed"};
  const auto by_manifests = judge_manifests(files);
  if (by_manifests && by_manifests->completeness != Completeness::complete) return *by_manifests;
  const bool trainer_state = any_path(files, [](std::string_view path) { return path == kTrainerState; });
  if (!trainer_state && is_begun_by_trainer(files)) {
    return {Completeness::incomplete, std::string(kTrainerState) + " is not there"};
  }
  if (any_path(files, is_deepspeed_state)) {
    const bool inside =
        !any_path(files, [](std::string_view path) { return is_at_top(path) && is_deepspeed_state(path); });
    if (inside && !trainer_state)
      return {Completeness::unknown, "DeepSpeed's files lie in a folder, and no Trainer's beside"};
    CompletenessJudgement judgement = judge_deepspeed(files, map);
    if (judgement.completeness != Completeness::complete || !trainer_state) return judgement;
    return judge_trainer(files);
  }
  if (any_path(files, is_dcp_metadata)) {
    CompletenessJudgement judgement = judge_problems(map);
    if (judgement.completeness != Completeness::complete || !trainer_state) return judgement;
    return judge_trainer(files);
  }
  if (trainer_state) return judge_trainer(files);
  if (by_manifests) return *by_manifests;
  return {Completeness::unknown, "no file tells which files belong to it"};
}

// A Hugging Face model begins with its JSON files. Of weights in several files the index comes last.
std::optional<CompletenessJudgement> find_missing_weights(const StepFiles& files) {
  const auto is_json = [](std::string_view path) { return path.ends_with(".json"); };
  const auto is_config = [](std::string_view path) { return path == "config.json"; };
  const auto is_shard = [](std::string_view path) {
    return is_at_top(path) && path.find("-of-") != path.npos &&
           (path.ends_with(".safetensors") || path.ends_with(".bin"));
  };
  const auto is_index = [](std::string_view path) { return path.ends_with(".index.json"); };
  const bool others = any_path(files, [&](std::string_view path) { return !is_json(path); });
  if (!others && any_path(files, is_config)) return lacking("a file of weights");
  if (any_path(files, is_shard) && !any_path(files, is_index)) return lacking("the index of the weights");
  return std::nullopt;
}

// Only ranks of other nodes have written here, as far as the names tell (use_node_local_storage).
bool is_of_another_node(const StepFiles& files) {
  const auto is_first = [](std::string_view path) {
    const auto states = parse_states_name(name_of(path));
    return states && states->rank.value_or(0) == 0;
  };
  return any_path(files, is_deepspeed_state) && !any_path(files, is_first);
}

// A file that its writer would have made longer.
std::optional<CompletenessJudgement> find_cut_file(const StepFiles& files) {
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    auto judgement = judge_end(files, index, true);
    if (judgement && judgement->completeness == Completeness::incomplete) return judgement;
  }
  return std::nullopt;
}

}  // namespace

bool is_first_model_states(std::string_view name) {
  const auto states = parse_states_name(name);
  return states && states->kind == StatesName::Kind::model && states->rank.value_or(0) == 0;
}

CompletenessJudgement judge_abandoned(const StepFiles& files, const CompletenessJudgement& judged,
                                      const SiblingFiles& siblings) {
  if (is_whole(judged.completeness) || files.refused()) return judged;
  if (files.list().empty()) return {Completeness::incomplete, "it holds no file"};
  const bool trainer_state = any_path(files, [](std::string_view path) { return path == kTrainerState; });
  // A Trainer cannot go on from a checkpoint without its state, whatever else that holds.
  const bool arguments = any_path(files, [](std::string_view path) { return path == "training_args.bin"; });
  if (!trainer_state && (arguments || siblings.trainer_state)) return lacking(kTrainerState);
  // DCP writes .metadata last. So what that names and is not there was never here: other ranks wrote to other machines.
  const bool metadata = any_path(files, is_dcp_metadata);
  if (metadata) return {Completeness::unknown, "other machines may have the files that are not there"};
  if (is_of_another_node(files) && !siblings.first_model_states) {
    return {Completeness::unknown, "rank 0 has no file here, and may have its files on another machine"};
  }
  if (judged.completeness == Completeness::incomplete) return judged;
  if (siblings.dcp_metadata) return lacking(kMetadataName);
  const auto is_first = [](std::string_view path) { return is_first_model_states(name_of(path)); };
  if (siblings.first_model_states && !any_path(files, is_first)) return lacking("model_states.pt of rank 0");
  if (auto cut = find_cut_file(files)) return *std::move(cut);
  if (auto missing = find_missing_weights(files)) return *std::move(missing);
  return judged;
}

std::optional<CompletenessJudgement> judge_thinned(const StepFiles& files) {
  const auto thinned = check_thinned(files);
  if (!thinned) return std::nullopt;
  if (!thinned->problem) return CompletenessJudgement{Completeness::weights, {}};
  const bool missing = thinned->problem->kind == Problem::Kind::missing;
  return CompletenessJudgement{missing ? Completeness::incomplete : Completeness::unknown, text_of(*thinned->problem)};
}

CompletenessJudgement judge_completeness(const StepFiles& files, const TensorMap& map) {
  CompletenessJudgement judgement = judge_by_kind(files, map);
  if (files.refused()) return {Completeness::unknown, files.refused()->message()};
  return judgement;
}

}  // namespace ckptfs::meta::formats

#include "meta/formats/completeness.h"

#include <algorithm>
#include <string_view>

#include "meta/formats/deepspeed_names.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kTrainerState = "trainer_state.json";
constexpr std::string_view kMetadataName = ".metadata";

std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }
bool is_at_top(std::string_view path) { return path.find('/') == std::string_view::npos; }

template <class Predicate>
bool any_path(const StepFiles& files, const Predicate& predicate) {
  return std::any_of(files.list().begin(), files.list().end(),
                     [&](const StepFiles::File& file) { return predicate(std::string_view(file.path)); });
}

// What a Trainer has begun: its arguments lie beside any model that it saves, the rest only in a checkpoint, and
// trainer_state.json comes last.
bool is_begun_by_trainer(const StepFiles& files) {
  const bool arguments = any_path(files, [](std::string_view path) { return path == "training_args.bin"; });
  return arguments && any_path(files, [](std::string_view path) {
           return path == "optimizer.pt" || path == "scheduler.pt" ||
                  (is_at_top(path) && path.starts_with("rng_state"));
         });
}

// In the step or in a folder of it.
bool is_deepspeed_state(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') <= 1 && parse_states_name(name_of(path)).has_value();
}
bool is_dcp_metadata(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') <= 1 && name_of(path) == kMetadataName;
}

std::string text_of(const Problem& problem) {
  return problem.file.empty() ? problem.reason : problem.file + ": " + problem.reason;
}

// What is missing outweighs what cannot be read.
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

// Its model_states.pt tells what there should be.
CompletenessJudgement judge_deepspeed(const StepFiles& files, const TensorMap& map) {
  const bool model = any_path(files, [](std::string_view path) {
    const auto name = is_deepspeed_state(path) ? parse_states_name(name_of(path)) : std::nullopt;
    return name && name->kind == StatesName::Kind::model && name->rank.value_or(0) == 0;
  });
  if (!model) return {Completeness::incomplete, "rank 0 has no model_states.pt"};
  return judge_problems(map);
}

}  // namespace

CompletenessJudgement judge_completeness(const StepFiles& files, const TensorMap& map) {
  const bool trainer_state = any_path(files, [](std::string_view path) { return path == kTrainerState; });
  if (!trainer_state && is_begun_by_trainer(files)) {
    return {Completeness::incomplete, std::string(kTrainerState) + " is not there"};
  }
  if (any_path(files, is_deepspeed_state)) {
    const bool inside =
        !any_path(files, [](std::string_view path) { return is_at_top(path) && is_deepspeed_state(path); });
    if (inside && !trainer_state)
      return {Completeness::unknown, "DeepSpeed's files lie in a folder, and no Trainer's beside"};
    return judge_deepspeed(files, map);
  }
  if (any_path(files, is_dcp_metadata)) return judge_problems(map);
  // Weights that cannot be read are no reason: the Trainer writes its state last.
  if (trainer_state) return {Completeness::complete, {}};
  return {Completeness::unknown, "no file tells which files belong to it"};
}

}  // namespace ckptfs::meta::formats

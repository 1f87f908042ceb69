#include "meta/formats/completeness.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <iterator>
#include <string_view>

#include "io/json.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/dcp.h"
#include "meta/formats/deepspeed.h"
#include "meta/formats/manifest.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/step_names.h"
#include "meta/formats/thinning.h"
#include "meta/formats/trainer_state.h"
#include "meta/formats/weight_index.h"
#include "meta/formats/zip_archive.h"

namespace ckptfs::meta::formats {
namespace {

bool is_too_large(const Problem& problem) {
  return problem.reason.ends_with(kTooManyTensors) || problem.reason.ends_with(kTooManyRuns);
}

// What the files of a step demand that is too large for a map. What else is wrong with it counts, too.
ShareCheck check_large(const StepFiles& files, const TensorMap& map) {
  const auto folder = deepspeed_folder(files);
  ShareCheck share = folder ? check_deepspeed(files, *folder, true) : check_dcp(files);
  TensorMap others;
  std::ranges::copy_if(map.problems, std::back_inserter(others.problems), std::not_fn(is_too_large));
  add_problems(others, share);
  return share;
}

// DeepSpeed's or DCP's, of which one file tells which others there should be.
CompletenessJudgement judge_states(const StepFiles& files, const StepNames& names, const TensorMap& map) {
  if (std::ranges::any_of(map.problems, is_too_large)) return judgement_of(check_large(files, map));
  ShareCheck share;
  add_problems(map, share);
  if (names.deepspeed() && map.parameters.empty()) share.add_unclear("nothing could be read of it");
  return judgement_of(share);
}

// Was a file of weights or states cut short? Its tensors are not read.
void check_end(const StepFiles& files, uint32_t index, ShareCheck& share, bool is_abandoned = false) {
  const StepFiles::File& file = files.list()[index];
  const bool zip = file.path.ends_with(".pt") || file.path.ends_with(".pth") || file.path.ends_with(".bin") ||
                   (file.path.ends_with(".pkl") && kind_of(file.path).is_resume_state());
  const bool safe = file.path.ends_with(".safetensors");
  if (!zip && !safe) return;
  if (file.size == 0) return share.add_broken(file.path + ": it is empty");
  const auto opened = files.open(index);
  if (!opened) return share.add_unclear(file.path + ": " + opened.error().message());
  if (zip) {
    const auto archive = ZipArchive::open(files.limited(opened.value()), {0, file.size});
    const bool is_cut = !archive && archive.error().errno_value() == ENODATA;
    if (is_cut) share.add_broken(file.path + ": " + archive.error().message());
    return;
  }
  const auto header = read_safetensors_header(files.limited(opened.value()));
  // ENOTSUP: a dtype that is not known here
  if (header || header.error().errno_value() == ENOTSUP) return;
  const std::string why = file.path + ": " + header.error().message();
  // Nobody will write the tensors that the header places beyond the end, nor the header.
  const bool is_cut = is_abandoned && header.error().errno_value() == EBADMSG;
  is_cut ? share.add_broken(why) : share.add_unclear(why);
}

// Megatron's and OLMo-core's tell the version of what lies beside them.
bool tells_version(std::string_view path) { return path == "metadata.json" || path == ".metadata.json"; }

void check_version(const StepFiles& files, uint32_t index, ShareCheck& share) {
  constexpr io::JsonBounds kBounds{.bytes = 1 << 20, .values = 1 << 16, .text = 1 << 16, .depth = 64};
  const auto text = files.read(index, kBounds.bytes);
  io::JsonVisitor nothing;
  const auto whole = text ? io::read_json(text.value(), kBounds, nothing) : text.error();
  if (whole) return;
  const std::string why = files.list()[index].path + ": " + whole.error().message();
  share.add_unclear(why);
}

void check_state(const StepFiles& files, uint32_t index, ShareCheck& share) {
  const auto& [path, size] = files.list()[index];
  const auto file = files.open(index);
  const auto whole = file ? check_trainer_state(files.limited(file.value()), size) : file.error();
  if (whole) return;
  const std::string why = path + ": " + whole.error().message();
  whole.error().errno_value() == EBADMSG ? share.add_broken(why) : share.add_unclear(why);  // it was cut short
}

// `latest` in a Trainer's step names the folder that DeepSpeed resumes from. The machine that wrote it has files there.
void check_inner_latest(const StepFiles& files, ShareCheck& share) {
  constexpr uint64_t kMostTag = 4096;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    if (kind_of(files.list()[index].path).role != FileRole::inner_latest) continue;
    const auto named = files.read(index, kMostTag);
    if (!named) return share.add_unclear("latest: " + named.error().message());
    std::string tag = named.value();
    tag.erase(tag.find_last_not_of(" \t\r\n") + 1);
    const auto lies_in = [&](std::string_view path) { return path.starts_with(tag + '/'); };
    if (tag.empty() || std::ranges::none_of(files.list(), lies_in, &StepFiles::File::path))
      share.add_unclear("`latest` names no folder of it");
  }
}

// "unet/diffusion_pytorch_model.safetensors": diffusers has accelerate save its models so.
bool is_weights_in_folder(std::string_view path) {
  const FileKind kind = kind_of(path);
  return kind.folders >= 1 && !kind.is_note() && (path.ends_with(".safetensors") || path.ends_with(".bin"));
}

CompletenessJudgement judge_by_kind(const StepFiles& files, const TensorMap& map) {
  if (const auto thinned = judge_thinned(files)) return *thinned;
  const StepNames names = names_of(files.list());
  const auto judge_manifests = [&files] {
    const Attendance there = check_manifests(files);
    return CompletenessJudgement{there.complete() ? Completeness::complete : Completeness::incomplete, there.reason};
  };
  return judge_by_names(names,
                        {.manifests = judge_manifests,
                         .states = [&] { return judge_states(files, names, map); },
                         .trainer_ends = [&] { return judgement_of(check_trainer_ends(files)); }},
                        false);
}

// A Hugging Face model begins with its JSON files. Of weights in several files the index comes last. Beside a model in
// one file shards may be left over.
std::optional<CompletenessJudgement> find_missing_weights(const StepFiles& files, const StepNames& names) {
  bool shards = false, one_file = false;
  for (const StepFiles::File& file : files.list()) {
    const FileKind kind = kind_of(file.path);
    // Others have shards without an index.
    if (kind.folders != 0 || !(file.path.ends_with(".safetensors") || file.path.ends_with(".bin"))) continue;
    const bool is_shard = file.path.find("-of-") != file.path.npos;
    shards = shards || is_shard;
    one_file =
        one_file || (!is_shard && kind.role >= FileRole::adapter_safetensors && kind.role <= FileRole::model_bin);
  }
  if (names.has_at_top(FileRole::config) && !names.may_hold_weights) return lacking("a file of weights");
  if (shards && !one_file && !names.has(FileRole::weights_index)) return lacking("the index of the weights");
  return std::nullopt;
}

}  // namespace

// A Trainer writes its state last, but syncs nothing: after a power loss the file may have its name but not its
// content. So the state, and the ends of the other files, are checked, too.
ShareCheck check_trainer_ends(const StepFiles& files) {
  ShareCheck share, inner;
  const StepNames names = names_of(files.list());
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    const FileKind kind = kind_of(path);
    const bool own = kind.role == FileRole::rank_pickle || (names.olmo && path.starts_with("train/rank"));
    if (path == kTrainerStateName) {
      check_state(files, index, share);
    } else if (names.more_than_dcp() && tells_version(path)) {
      check_version(files, index, share);
    } else if (kind.folders == 0 || own) {
      check_end(files, index, share);
    } else if (is_weights_in_folder(path)) {
      check_end(files, index, inner);
    }
  }
  check_weight_indexes(files, false, share);
  check_weight_indexes(files, true, inner);
  check_inner_latest(files, share);
  // A Trainer's weights lie at the top. In another's folders there may also be what a converter has left.
  if (names.trainer_state()) return share;
  share.add_unclear(inner.missing.empty() ? inner.unclear : inner.missing.front().path + " is not there");
  if (!inner.broken.empty()) share.add_unclear(inner.broken);
  return share;
}

CompletenessJudgement judge_abandoned(const StepFiles& files, const CompletenessJudgement& judged,
                                      const SiblingFiles& siblings) {
  if (is_whole(judged.completeness) || files.refused()) return judged;
  if (files.list().empty()) return {Completeness::incomplete, "it holds no file"};
  const StepNames names = names_of(files.list());
  const bool arguments = names.has_at_top(FileRole::arguments);
  const bool of_trainer = !names.trainer_state() && (arguments || siblings.trainer_state);
  // What is for a resume is of no use without the Trainer's state. A model alone may be all that was to be saved,
  // unless who wrote it had written checkpoints, or a Trainer wrote it among its checkpoints.
  if (of_trainer && (!names.model_alone || siblings.of_same_trainer || (arguments && siblings.trainer_state)))
    return lacking(kTrainerStateName);
  // DCP writes .metadata last. So what that names and is not there was never here: other ranks wrote to other machines.
  if (names.has(FileRole::dcp_metadata))
    return {Completeness::unknown, "other machines may have the files that are not there"};
  // Only ranks of other nodes have written here, as far as the names tell (use_node_local_storage).
  if (names.deepspeed() && !names.first_rank && !siblings.first_model_states)
    return {Completeness::unknown, "rank 0 has no file here, and may have its files on another machine"};
  if (judged.completeness == Completeness::incomplete) return judged;
  // Siblings tell what a file of this kind lacks, and nothing of a step of another kind.
  if (siblings.dcp_metadata && names.has(FileRole::dcp_data)) return lacking(".metadata");
  if (siblings.first_model_states && names.deepspeed() && !names.first_model_states)
    return lacking("model_states.pt of rank 0");
  ShareCheck ends;  // a file that was cut off its writer would have made longer
  for (uint32_t index = 0; index < files.list().size() && ends.broken.empty(); ++index) {
    check_end(files, index, ends, true);
  }
  if (!ends.broken.empty()) return {Completeness::incomplete, ends.broken};
  if (auto missing = find_missing_weights(files, names)) return *std::move(missing);
  if (of_trainer) return {Completeness::unknown, "it has a model and no trainer_state.json, and may be meant so"};
  return judged;
}

std::optional<CompletenessJudgement> judge_thinned(const StepFiles& files) {
  const auto thinned = check_thinned(files);
  return thinned ? std::optional(judgement_of(*thinned, Completeness::weights)) : std::nullopt;
}

CompletenessJudgement judge_completeness(const StepFiles& files, const TensorMap& map) {
  CompletenessJudgement judgement = judge_by_kind(files, map);
  if (files.refused()) return {Completeness::unknown, files.refused()->message()};
  return judgement;
}

}  // namespace ckptfs::meta::formats

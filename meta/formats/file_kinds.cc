#include "meta/formats/file_kinds.h"

#include <algorithm>
#include <array>
#include <utility>

#include "meta/formats/manifest.h"
#include "meta/formats/name_parts.h"
#include "meta/formats/trainer_state.h"

namespace ckptfs::meta::formats {
namespace {

enum class Middle : uint8_t {
  none,
  number,  // nothing, or "_3"
  some_number,
  shard,  // nothing, or "-00001-of-00002"
  any,
};

// A name is BEGINNING, MIDDLE, ENDING.
struct Row {
  std::string_view beginning;
  Middle middle;
  std::string_view ending;
  bool at_top;  // elsewhere it is none of these
  FileRole role;
};

// The first row that fits counts.
constexpr std::array kRows{
    Row{kTrainerStateName, Middle::none, "", true, FileRole::trainer_state},
    Row{kThinnedName, Middle::none, "", true, FileRole::thinned},
    Row{"", Middle::any, "model_states.pt", false, FileRole::other_states},
    Row{"", Middle::any, "optim_states.pt", false, FileRole::other_states},
    Row{".metadata", Middle::none, "", false, FileRole::dcp_metadata},
    Row{"", Middle::any, ".metadata", false, FileRole::dcp_rank_metadata},
    Row{"", Middle::any, ".distcp", false, FileRole::dcp_data},
    Row{"model_world_size_", Middle::any, ".pt", false, FileRole::rank_pickle},
    Row{"optim_world_size_", Middle::any, ".pt", false, FileRole::rank_pickle},
    Row{"extra_state_world_size_", Middle::any, ".pt", false, FileRole::rank_pickle},
    Row{"training_args.bin", Middle::none, "", true, FileRole::arguments},
    Row{"meta.pt", Middle::none, "", true, FileRole::lightning},
    Row{"latest", Middle::none, "", true, FileRole::inner_latest},
    Row{"optimizer", Middle::number, ".pt", true, FileRole::optimizer},
    Row{"optimizer", Middle::number, ".bin", true, FileRole::optimizer},
    Row{"scheduler", Middle::number, ".pt", true, FileRole::scheduler},
    Row{"scheduler", Middle::number, ".bin", true, FileRole::scheduler},
    Row{"rng_state", Middle::number, ".pth", true, FileRole::rng_state},
    Row{"scaler", Middle::number, ".pt", true, FileRole::other_resume},
    Row{"random_states", Middle::some_number, ".pkl", true, FileRole::random_states},
    Row{"custom_checkpoint", Middle::some_number, ".pkl", true, FileRole::other_resume},
    Row{"sampler", Middle::number, ".bin", true, FileRole::other_resume},
    Row{"zero_to_fp32.py", Middle::none, "", true, FileRole::script},
    Row{"zero_to_torch.py", Middle::none, "", true, FileRole::script},
    Row{"", Middle::any, ".tensor.swp", false, FileRole::swap_file},
    Row{"adapter_model", Middle::shard, ".safetensors", true, FileRole::adapter_safetensors},
    Row{"adapter_model", Middle::shard, ".bin", true, FileRole::adapter_bin},
    Row{"model", Middle::shard, ".safetensors", true, FileRole::model_safetensors},
    Row{"pytorch_model", Middle::shard, ".bin", true, FileRole::model_bin},
    Row{"", Middle::any, ".index.json", false, FileRole::weights_index},
    Row{"", Middle::any, ".safetensors", false, FileRole::other_safetensors},
    Row{"config.json", Middle::none, "", true, FileRole::config},
    Row{"adapter_config.json", Middle::none, "", true, FileRole::adapter_config},
    Row{"tokenizer.model", Middle::none, "", true, FileRole::note},
};
// accelerate's, OLMo-core's, Automodel's
constexpr std::array<std::string_view, 5> kSignFolders{"pytorch_model", "pytorch_model_fsdp_0", "optimizer_0",
                                                       "model_and_optim", "optim"};
constexpr std::array<std::string_view, 11> kTexts{".json", ".jsonl", ".txt", ".md",   ".log",  ".csv",
                                                  ".html", ".png",   ".yml", ".yaml", ".jinja"};
constexpr std::array<std::string_view, 10> kWeights{".bin",     ".pt",   ".pth", ".ckpt", ".h5",
                                                    ".msgpack", ".gguf", ".npz", ".pkl",  ".swp"};

bool fits(Middle middle, std::string_view text) {
  if (middle == Middle::any || (text.empty() && middle != Middle::some_number)) return true;
  if (text.empty()) return false;
  if (middle == Middle::number || middle == Middle::some_number)
    return text.front() == '_' && are_digits(text.substr(1));
  const size_t of = text.find("-of-");
  return middle == Middle::shard && text.front() == '-' && of != text.npos && of != 0 &&
         are_digits(text.substr(1, of - 1)) && are_digits(text.substr(of + 4));
}

bool fits(const Row& row, std::string_view name) {
  const size_t affixes = row.beginning.size() + row.ending.size();
  return name.size() >= affixes && name.starts_with(row.beginning) && name.ends_with(row.ending) &&
         fits(row.middle, name.substr(row.beginning.size(), name.size() - affixes));
}

bool ends_with_any(std::string_view name, const auto& endings) {
  return std::ranges::any_of(endings, [&](auto ending) { return name.ends_with(ending); });
}

// In a hidden folder, or hidden itself.
bool is_hidden(std::string_view path) { return path.starts_with('.') || path.find("/.") != path.npos; }

FileRole role_of(std::string_view path, std::string_view name, bool at_top) {
  const std::string_view folder = path.substr(0, path.size() - name.size());
  if (is_hidden(folder)) return FileRole::note;
  if (name.starts_with(".tmp")) return FileRole::temporary;
  if (is_manifest_name(name)) return FileRole::rank_manifest;
  const auto* const row =
      std::ranges::find_if(kRows, [&](const Row& one) { return (at_top || !one.at_top) && fits(one, name); });
  if (row != kRows.end()) return row->role;
  if (is_hidden(name) || ends_with_any(name, kTexts)) return FileRole::note;
  return ends_with_any(name, kWeights) || path.starts_with("pytorch_model") ? FileRole::other_weights : FileRole::other;
}

}  // namespace

FileKind kind_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  FileKind kind;
  kind.folders = static_cast<size_t>(std::ranges::count(path, '/'));
  kind.role = role_of(path, name, kind.folders == 0);
  if (kind.role != FileRole::other_states) return kind;
  kind.states = parse_states_name(name);
  if (!kind.states) return kind;
  kind.role = kind.states->kind == StatesName::Kind::model ? FileRole::model_states : FileRole::optim_states;
  return kind;
}

bool FileKind::is_sign(bool beside_config) const {
  const bool safetensors = role == FileRole::adapter_safetensors || role == FileRole::model_safetensors ||
                           role == FileRole::other_safetensors;
  const bool resume = role == FileRole::optimizer || role == FileRole::random_states;
  return (role >= FileRole::trainer_state && role <= FileRole::rank_manifest) || resume ||
         (beside_config && safetensors);
}

bool FileKind::tells_names() const {
  return (role >= FileRole::model_states && role <= FileRole::dcp_metadata) ||
         (role >= FileRole::dcp_rank_metadata && role <= FileRole::other_safetensors);
}

bool FileKind::holds_weights() const {
  return (role >= FileRole::model_states && role <= FileRole::other_states) || role == FileRole::swap_file ||
         (role >= FileRole::dcp_data && role <= FileRole::other_weights && role != FileRole::weights_index);
}

bool FileKind::may_hold_weights() const {
  return folders != 0 || role == FileRole::other || role == FileRole::temporary || role == FileRole::dcp_metadata ||
         role == FileRole::dcp_rank_metadata || holds_weights();
}

std::vector<std::string> sign_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) {
    const bool counts = FileKind{row.role}.is_sign(false) || row.role == FileRole::config;
    if (row.middle == Middle::none && counts) names.emplace_back(row.beginning);
  }
  return names;
}

bool is_sign_folder(std::string_view name) { return std::ranges::find(kSignFolders, name) != kSignFolders.end(); }

const char* name_of_kind(const FileRoles& roles) {
  constexpr std::array<std::pair<FileRole, const char*>, 8> kKinds{{{FileRole::trainer_state, "hf"},
                                                                    {FileRole::thinned, "weights"},
                                                                    {FileRole::model_states, "deepspeed"},
                                                                    {FileRole::optim_states, "deepspeed"},
                                                                    {FileRole::other_states, "deepspeed"},
                                                                    {FileRole::dcp_metadata, "dcp"},
                                                                    {FileRole::random_states, "accelerate"},
                                                                    {FileRole::rank_manifest, "ckptfs"}}};
  const auto* const found = std::ranges::find_if(kKinds, [&](const auto& one) { return roles[size_t(one.first)]; });
  return found == kKinds.end() ? nullptr : found->second;
}

}  // namespace ckptfs::meta::formats

// Parses the names of the files of a DeepSpeed checkpoint, and sorts the files by them. Stateless.
// Source: deepspeed/runtime/engine.py (_get_ckpt_name, _get_rank_zero_ckpt_name), runtime/swap_tensor.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// "zero_pp_rank_1_mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_..._optim_states.pt"
struct StatesName {
  enum class Kind { model, optimizer };
  Kind kind = Kind::model;
  std::optional<unsigned> rank;  // data parallel rank; empty if all ranks have the same file
  unsigned model_rank = 0;       // model parallel rank
};
std::optional<StatesName> parse_states_name(std::string_view name);
std::string model_rank_name(unsigned model_rank);  // "mp_rank_01"

// "layer_03-model_states.pt" gives 3: one layer of a pipeline.
std::optional<unsigned> parse_layer_name(std::string_view name);
std::string layer_name(unsigned layer);

// "layer_0_expert_3_mp_rank_00_model_states.pt": an expert by its number among all ranks'. The layers that have experts
// are counted from 0.
struct ExpertName {
  unsigned layer = 0;
  unsigned expert = 0;
  auto operator<=>(const ExpertName&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
};
std::optional<ExpertName> parse_expert_name(std::string_view name);
std::string expert_name(const ExpertName& expert);

// "0_6.tensor.swp", "exp_avg-0_6.tensor.swp"
struct GroupName {
  std::string state;  // "fp32" if the name has no prefix
  uint64_t first = 0;
  uint64_t last = 0;
};
std::optional<GroupName> parse_group_name(std::string_view name);

// "7_param.tensor.swp" gives 7.
std::optional<uint64_t> parse_param_name(std::string_view name);

// The number of the folder in a Trainer's or accelerate's step in which DeepSpeed's files lie; none: it is called
// otherwise. "global_step500" gives 500, "pytorch_model" 0.
std::optional<uint64_t> inner_number(std::string_view folder);

// All numbers of files here are indices into StepFiles::list().
struct RankFiles {
  std::optional<uint32_t> model;
  std::optional<uint32_t> optimizer;
  std::map<std::string, uint32_t> swapped;  // from offloaded_tensors, by name
  std::map<uint64_t, uint32_t> params;      // from offloaded_params, by ds_id
};

inline constexpr unsigned kMostRanks = 1 << 16;
inline constexpr unsigned kMostModelRanks = 256;

// The files of the ranks that have the same part of the model: a stage of a pipeline, or a rank of tensor parallelism.
struct ModelRankFiles {
  std::vector<RankFiles> ranks;          // up to the highest data parallel rank that has a file
  std::optional<uint32_t> common_model;  // stages 1 and 2: all ranks have the same file
};

struct DeepSpeedFiles {
  std::deque<ModelRankFiles> model_ranks{1};  // up to the highest that has a file
  size_t places = 0;                          // of ranks in them: at most kMostRanks
  std::map<unsigned, uint32_t> layers;        // of a pipeline
  std::map<ExpertName, uint32_t> experts;
  // The file that our Python package leaves in a step (gpu/python/ckptfs/deepspeed.py): {"layers.0.weight": 3, ...}
  std::optional<uint32_t> ids;
  std::vector<std::pair<uint32_t, std::string>> foreign;  // files of layouts that are not read, with the reason
};
// `folder` is a folder of the step: "" or "global_step4/".
DeepSpeedFiles find_files(const StepFiles& files, const std::string& folder);
// Gives the k-th swap folder to the k-th rank that has other files. They stay as they are if the numbers differ.
void place_swap_folders(ModelRankFiles& found);

// One rank's swap file of one state of a group.
struct SwappedState {
  std::string state;
  uint32_t file = 0;
};
// The swap files by the group's name, "0_6".
using SwappedStates = std::map<std::string_view, std::vector<SwappedState>>;
// "0_6.tensor.swp" and "exp_avg-0_6.tensor.swp" are of group "0_6". The names are those in `rank`.
SwappedStates swapped_states(const RankFiles& rank);

inline constexpr std::array<std::string_view, 2> kMoments{"exp_avg", "exp_avg_sq"};
// For each of them, whether any rank has swapped it for any group.
std::array<bool, kMoments.size()> swapped_moments(const ModelRankFiles& found);

}  // namespace ckptfs::meta::formats

// Parses the names of the files of a DeepSpeed checkpoint. Pure functions.
// Source: deepspeed/runtime/engine.py (_get_ckpt_name, _get_rank_zero_ckpt_name), runtime/swap_tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckptfs::meta::formats {

// "zero_pp_rank_1_mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_..._optim_states.pt"
struct StatesName {
  enum class Kind { model, optimizer };
  Kind kind = Kind::model;
  std::optional<unsigned> rank;  // data parallel rank; empty if all ranks have the same file
  unsigned model_rank = 0;       // model parallel rank
};
std::optional<StatesName> parse_states_name(std::string_view name);

// "0_6.tensor.swp", "exp_avg-0_6.tensor.swp"
struct GroupName {
  std::string state;  // "fp32" if the name has no prefix
  uint64_t first = 0;
  uint64_t last = 0;
};
std::optional<GroupName> parse_group_name(std::string_view name);

// "7_param.tensor.swp" gives 7.
std::optional<uint64_t> parse_param_name(std::string_view name);

}  // namespace ckptfs::meta::formats

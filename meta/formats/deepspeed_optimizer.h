// Reads what DeepSpeed's ranks have saved of the optimizer: master weights and states of all groups of parameters, in
// optim_states.pt or in swap files.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meta/formats/deepspeed_compose.h"
#include "meta/formats/deepspeed_experts.h"
#include "meta/formats/deepspeed_step.h"
#include "meta/formats/pickle.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {

class OptimizerStates {
 public:
  // All must outlive it. `parts`: has the groups by the time that the first rank is read; gets their states.
  OptimizerStates(DeepSpeedStep& step, const ModelRankFiles& found, Experts& experts, DeepSpeedParts& parts)
      : step_(step), ranks_(found.ranks), experts_(experts), parts_(parts), moments_swapped_(swapped_moments(found)) {}

  // `config`: the training's ds_config.
  void read_config(const std::optional<Pickle::Value>& config);
  // Reads the optim_states.pt of a data parallel rank. `index`: of the file.
  void read(unsigned rank, uint32_t index);

 private:
  using Value = Pickle::Value;

  void check_length(const ParameterGroup& group, const std::string& state, const Flat& flat);
  void keep(ParameterGroup& group, const std::string& state, size_t place, const Flat& flat);
  void read_sub_groups(uint32_t index, unsigned rank, TorchFile& file, const Value& state);
  void read_swapped(unsigned rank, ParameterGroup& group, const std::vector<SwappedState>& swapped);
  void expect_swapped(uint32_t index, unsigned rank, const std::string& name, const std::optional<Value>& kept);
  void read_states(uint32_t index, size_t place, TorchFile& file, ParameterGroup& group, const Flat& master,
                   const std::optional<Value>& state);
  void read_partitions(uint32_t index, unsigned rank, TorchFile& file, const Value& state);
  void read_paddings(const std::optional<Value>& paddings);

  DeepSpeedStep& step_;
  MapBuilder& builder_ = step_.builder;
  const std::vector<RankFiles>& ranks_;
  Experts& experts_;
  DeepSpeedParts& parts_;
  const std::array<bool, kMoments.size()> moments_swapped_;
  // Bytes; runtime/swap_tensor/optimizer_utils.py, MIN_AIO_BYTES
  uint64_t smallest_swapped_ = uint64_t{1} << 20;
  bool swaps_ = false;  // it is on NVMe
};

}  // namespace ckptfs::meta::formats

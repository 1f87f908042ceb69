#include "meta/formats/deepspeed_optimizer.h"

#include <algorithm>
#include <utility>

#include "meta/formats/pickle_access.h"

namespace ckptfs::meta::formats {
namespace {

using Value = Pickle::Value;

constexpr size_t kMostStates = 16;  // in one group

// Returns "0_6", the ds_ids of the group's first and last parameter. DeepSpeed sets this attribute on the tensor.
std::optional<std::string> group_name(const Value& master) {
  const auto tensor = TorchFile::tensor(master);
  if (!tensor || !tensor.value()) return std::nullopt;
  const auto text = short_text(field(tensor.value()->attributes, "ds_id"));
  return text ? std::optional(std::string(*text)) : std::nullopt;
}

bool is_master(const SwappedState& swapped) { return swapped.state == kMaster; }

}  // namespace

void OptimizerStates::read_config(const std::optional<Value>& config) {
  const auto device = find(find(find(config, "zero_optimization"), "offload_optimizer"), "device");
  swaps_ = device && device->text() == "nvme";
  const auto block = number_of(find(find(config, "aio"), "block_size"));
  if (block && *block > 0) smallest_swapped_ = std::max(smallest_swapped_, static_cast<uint64_t>(*block));
}

void OptimizerStates::read(unsigned rank, uint32_t index) {
  builder_.with_file(index, [&](TorchFile& file) {
    const auto state = file.root().find("optimizer_state_dict");
    // BF16_Optimizer (GPT-NeoX) lays its parameters as stage 1 does, and tells no stage.
    const bool bf16 = !find(state, "zero_stage") && find(state, "single_partition_of_fp32_groups");
    const auto stage = bf16 ? std::optional<int64_t>(1) : number_of(find(state, "zero_stage"));
    if (!stage || *stage < 1 || *stage > 3) return builder_.problem(index, "it is of no stage of ZeRO from 1 to 3");
    const auto partitions = largest_of(find(state, "partition_count"));
    if (find(state, "ds_zero_partition_groups")) {
      return builder_.give_up(index, "experts that are spread over ranks are not read");
    }
    if (parts_.stage != 0 && parts_.stage != static_cast<unsigned>(*stage))
      return builder_.give_up(index, "its stage is not rank 0's");
    if (partitions && *partitions != static_cast<int64_t>(ranks_.size())) {
      return builder_.give_up(index, "it is one of " + std::to_string(*partitions) + " ranks, and there are " +
                                         std::to_string(ranks_.size()));
    }
    parts_.stage = static_cast<unsigned>(*stage);
    if (parts_.stage == 3) {
      read_sub_groups(index, rank, file, *state);
    } else {
      read_partitions(index, rank, file, *state);
    }
  });
}

// In stages 1 and 2 the parts of all ranks have to be known for that.
void OptimizerStates::check_length(const ParameterGroup& group, const std::string& state, const Flat& flat) {
  const bool fits = parts_.stage != 3 || flat.elements() == group.part;
  if (!fits) builder_.problem(flat.piece.file, state + " has not the length of its parameters");
}

// Notes where a rank's part of the state lies. `place`: among the group's holders.
void OptimizerStates::keep(ParameterGroup& group, const std::string& state, size_t place, const Flat& flat) {
  if (step_.is_share) return check_length(group, state, flat);
  Flats& flats = group.states[state];
  if (flats.empty() && !builder_.has_room(group.holders * sizeof(Flats::value_type))) return;
  if (group.states.size() > kMostStates) return builder_.give_up(std::nullopt, "it has too many states");
  flats.resize(group.holders);
  flats[place] = flat;
}

// Reads the groups of stage 3.
void OptimizerStates::read_sub_groups(uint32_t index, unsigned number, TorchFile& file, const Value& state) {
  const auto masters = state.find("fp32_flat_groups");
  const auto states = by_number(find(state.find("optimizer_state_dict"), "state"), parts_.told_groups);
  if (!masters || masters->size() != parts_.told_groups) {
    return builder_.problem(index, "it has not the groups that param_shapes of rank 0 has");
  }
  const SwappedStates swapped = swapped_states(ranks_[number]);
  for (size_t at = 0; at < parts_.told_groups && !builder_.is_given_up(); ++at) {
    ParameterGroup& group = parts_.groups[at];
    const Value master = (*masters)[at];
    const auto name = group_name(master);
    if (name && !group.name) group.name = parse_group_name(*name + ".tensor.swp");
    const auto files = name ? swapped.find(*name) : swapped.end();
    const bool on_disk = files != swapped.end() && std::ranges::any_of(files->second, is_master);
    if (on_disk) {
      read_swapped(number, group, files->second);
      expect_swapped(index, number, *name, states[at]);
    } else if (swaps_ && group.part * size_of(Dtype::float32) >= smallest_swapped_) {
      // The tensor in optim_states.pt may be a recycled buffer.
      builder_.missing(index, "the swap file " + name.value_or("of a group") + ".tensor.swp is not there");
    } else {
      const auto flat = builder_.flat_of(index, file, master, "fp32_flat_groups");
      if (flat) keep(group, kMaster, number, *flat);
      if (flat) read_states(index, number, file, group, *flat, states[at]);
    }
  }
}

void OptimizerStates::read_swapped(unsigned number, ParameterGroup& group, const std::vector<SwappedState>& swapped) {
  const uint64_t size = group.part * size_of(Dtype::float32);
  for (const auto& [state, index] : swapped) {
    if (builder_.files().list()[index].size < size) {
      builder_.missing(index, "it has fewer than the " + std::to_string(size) + " bytes of its parameters");
      continue;
    }
    keep(group, state, number, Flat{{index, 0, size}, Dtype::float32});
  }
}

// Adam's moments must be swapped like the weights, if optim_states.pt names them or any other group has swapped them.
void OptimizerStates::expect_swapped(uint32_t index, unsigned number, const std::string& name,
                                     const std::optional<Value>& kept) {
  for (size_t at = 0; at < kMoments.size(); ++at) {
    const std::string state(kMoments.at(at)), file = state + "-" + name + ".tensor.swp";
    if (ranks_[number].swapped.contains(file)) continue;
    if (moments_swapped_.at(at) || field(kept, state))
      builder_.missing(index, "the swap file " + file + " is not there");
  }
}

// Reads the states that the optimizer keeps in memory for each element of the group.
void OptimizerStates::read_states(uint32_t index, size_t place, TorchFile& file, ParameterGroup& group,
                                  const Flat& master, const std::optional<Value>& state) {
  for (size_t at = 0; state && at < std::min(state->pairs(), kMostStates); ++at) {
    const auto [key, value] = state->pair(at);
    const auto name = short_text(key);
    const auto tensor = TorchFile::tensor(value);
    const bool is_state = name && tensor && tensor.value() && !tensor.value()->shape.empty();
    if (!is_state || tensor.value()->elements() < master.elements()) continue;
    if (auto flat = builder_.flat_of(index, file, value, std::string(*name)))
      keep(group, std::string(*name), place, *flat);
  }
}

// Reads the partitions of stages 1 and 2.
void OptimizerStates::read_partitions(uint32_t index, unsigned number, TorchFile& file, const Value& state) {
  const auto masters = state.find("single_partition_of_fp32_groups");
  const auto base = state.find("base_optimizer_state");
  if (!masters || masters->size() != parts_.told_groups) {
    return builder_.problem(index, "it has not the groups that param_shapes of rank 0 has");
  }
  if (number == 0) read_paddings(state.find("param_alignment_paddings"));
  if (number == 0 && experts_.any()) experts_.spread(parts_, state.find("partition_count"), ranks_.size());
  const auto numbered = find(base, "state");
  const auto states = by_number(numbered, parts_.told_groups);
  for (size_t at = 0; at < parts_.told_groups && !builder_.is_given_up(); ++at) {
    const auto [of, place] = experts_.place_of(at, number);
    ParameterGroup& group = parts_.groups[of];
    const auto flat = builder_.flat_of(index, file, (*masters)[at], "single_partition_of_fp32_groups");
    if (!flat) continue;
    keep(group, kMaster, place, *flat);
    const bool listed = base && !numbered && at < base->size();  // elastic checkpoints have a list
    read_states(index, place, file, group, *flat, listed ? std::optional((*base)[at]) : states[at]);
  }
}

void OptimizerStates::read_paddings(const std::optional<Value>& paddings) {
  for (size_t at = 0; paddings && at < std::min(paddings->size(), parts_.groups.size()); ++at) {
    const Value of_group = (*paddings)[at];
    std::vector<Member>& members = parts_.groups[at].members;
    for (size_t member = 0; member < std::min(of_group.size(), members.size()); ++member) {
      const auto padding = of_group[member].integer();
      if (padding && *padding > 0) members[member].padding = static_cast<uint64_t>(*padding);
    }
  }
}

}  // namespace ckptfs::meta::formats

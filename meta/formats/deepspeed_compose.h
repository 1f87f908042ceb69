// A DeepSpeed checkpoint's parameters, put together from the parts that were read of its files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meta/formats/deepspeed_files.h"
#include "meta/formats/map_builder.h"

namespace ckptfs::meta::formats {

// The state that is the weights in full precision.
inline constexpr const char* kMaster = "fp32";

inline uint64_t divide_up(uint64_t number, uint64_t by) { return (number + by - 1) / by; }

// Parameters that the optimizer has as one.
struct ParameterGroup {
  std::vector<Member> members;
  uint64_t part = 0;   // elements of one rank, in stage 3
  size_t holders = 0;  // ranks that have a part
  std::optional<GroupName> name;
  std::map<std::string, Flats> states;
};

// DeepSpeed's numbers of parameters, by their names.
using ParameterIds = std::map<std::string_view, std::optional<uint64_t>>;

struct DeepSpeedParts {
  unsigned stage = 0;  // none: no optim_states.pt was read
  std::vector<ParameterGroup> groups;
  size_t told_groups = 0;  // those that files number; behind them: other ranks' experts
  std::vector<Member> frozen;
  std::map<std::string, Flats> fragments;  // of frozen parameters
  std::map<std::string, Tensor> compute;   // stages 1 and 2: parameters as the model computes with them
  ParameterIds ids;
};

// Adds the parameters of all groups, and the frozen ones. `parts`: is used up.
void compose(DeepSpeedParts& parts, const std::vector<RankFiles>& ranks, MapBuilder& builder);

}  // namespace ckptfs::meta::formats

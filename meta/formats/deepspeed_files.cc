#include "meta/formats/deepspeed_files.h"

#include <algorithm>

#include "meta/formats/name_parts.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kIds = "ckptfs.ds_ids.json";
constexpr std::string_view kSwapSuffix = ".tensor.swp";

std::string of_two_digits(unsigned number) { return (number < 10 ? "0" : "") + std::to_string(number); }

// None: there are more ranks than a run can have.
RankFiles* rank_in(DeepSpeedFiles& found, unsigned model_rank, unsigned number) {
  if (number >= kMostRanks || model_rank >= kMostModelRanks) return nullptr;
  if (model_rank >= found.model_ranks.size()) found.model_ranks.resize(model_rank + 1);
  std::vector<RankFiles>& ranks = found.model_ranks[model_rank].ranks;
  if (number >= ranks.size()) {
    found.places += number + 1 - ranks.size();
    if (found.places > kMostRanks) return nullptr;
    ranks.resize(number + 1);
  }
  return &ranks[number];
}

void add_states(DeepSpeedFiles& found, uint32_t index, std::string_view name) {
  if (name == kIds) found.ids = index;
  if (const auto layer = parse_layer_name(name)) {
    found.layers[*layer] = index;
    return;
  }
  if (const auto expert = parse_expert_name(name)) {
    found.experts[*expert] = index;
    return;
  }
  const auto states = parse_states_name(name);
  if (!states) {
    const bool foreign = name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt") ||
                         (name.starts_with("layer_") && name.ends_with("-model_states.pt"));
    if (foreign) found.foreign.emplace_back(index, "experts and tensor parallel stages of a pipeline are not read");
    return;
  }
  RankFiles* const rank = rank_in(found, states->model_rank, states->rank.value_or(0));
  if (rank == nullptr) {
    found.foreign.emplace_back(index, "its rank cannot be one");
  } else if (!states->rank) {
    found.model_ranks[states->model_rank].common_model = index;
  } else {
    (states->kind == StatesName::Kind::model ? rank->model : rank->optimizer) = index;
  }
}

// "offloaded_tensors/rank00/0_6.tensor.swp"
void add_swapped(DeepSpeedFiles& found, uint32_t index, std::string_view path) {
  const size_t slash = path.find('/'), next = path.find('/', slash + 1);
  if (next == std::string_view::npos) return;
  const std::string_view kind = path.substr(0, slash);
  const auto number = rank_of(path.substr(slash + 1, next - slash - 1));
  if (!number) return;
  const std::string name(path.substr(next + 1));
  RankFiles* const rank = rank_in(found, 0, *number);
  if (rank == nullptr) return;
  if (kind == "offloaded_tensors" && parse_group_name(name)) rank->swapped[name] = index;
  if (kind != "offloaded_params") return;
  if (const auto id = parse_param_name(name)) rank->params[*id] = index;
}

}  // namespace

std::optional<StatesName> parse_states_name(std::string_view name) {
  StatesName found;
  if (drop(name, "_optim_states.pt")) {
    found.kind = StatesName::Kind::optimizer;
  } else if (!drop(name, "_model_states.pt")) {
    return std::nullopt;
  }
  skip(name, "bf16_");
  if (skip(name, "zero_pp_rank_")) {
    found.rank = take_number<unsigned>(name);
    if (!found.rank || !skip(name, "_")) return std::nullopt;
  }
  if (!skip(name, "mp_rank_")) return std::nullopt;
  const auto model_rank = take_number<unsigned>(name);
  if (!model_rank || !name.empty()) return std::nullopt;
  found.model_rank = *model_rank;
  return found;
}

std::string model_rank_name(unsigned model_rank) { return "mp_rank_" + of_two_digits(model_rank); }

std::optional<unsigned> parse_layer_name(std::string_view name) {
  std::string_view rest = name;
  if (!skip(rest, "layer_")) return std::nullopt;
  const auto layer = take_number<unsigned>(rest);
  return layer && name == layer_name(*layer) ? layer : std::nullopt;
}

std::string layer_name(unsigned layer) { return "layer_" + of_two_digits(layer) + "-model_states.pt"; }

std::optional<ExpertName> parse_expert_name(std::string_view name) {
  std::string_view rest = name;
  if (!skip(rest, "layer_")) return std::nullopt;
  const auto layer = take_number<unsigned>(rest);
  if (!layer || !skip(rest, "_expert_")) return std::nullopt;
  const auto number = take_number<unsigned>(rest);
  const ExpertName expert{*layer, number.value_or(0)};
  return number && name == expert_name(expert) ? std::optional(expert) : std::nullopt;
}

std::string expert_name(const ExpertName& expert) {
  return "layer_" + std::to_string(expert.layer) + "_expert_" + std::to_string(expert.expert) +
         "_mp_rank_00_model_states.pt";
}

std::optional<GroupName> parse_group_name(std::string_view name) {
  GroupName found;
  if (!drop(name, kSwapSuffix)) return std::nullopt;
  const size_t dash = name.find('-');
  found.state = dash == std::string_view::npos ? "fp32" : std::string(name.substr(0, dash));
  if (dash != std::string_view::npos) name.remove_prefix(dash + 1);
  const auto first = take_number<uint64_t>(name);
  if (!first || !skip(name, "_")) return std::nullopt;
  const auto last = take_number<uint64_t>(name);
  if (!last || !name.empty() || found.state.empty()) return std::nullopt;
  found.first = *first;
  found.last = *last;
  return found;
}

std::optional<uint64_t> parse_param_name(std::string_view name) {
  if (!drop(name, "_param" + std::string(kSwapSuffix))) return std::nullopt;
  const auto number = take_number<uint64_t>(name);
  return name.empty() ? number : std::nullopt;
}

std::optional<uint64_t> inner_number(std::string_view folder) {
  return folder == "pytorch_model" ? std::optional<uint64_t>(0) : step_number(folder);
}

DeepSpeedFiles find_files(const StepFiles& files, const std::string& folder) {
  DeepSpeedFiles found;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    std::string_view path = files.list()[index].path;
    if (!path.starts_with(folder)) continue;
    path.remove_prefix(folder.size());
    if (path.find('/') == std::string_view::npos) {
      add_states(found, index, path);
    } else {
      add_swapped(found, index, path);
    }
  }
  return found;
}

void place_swap_folders(ModelRankFiles& found) {
  std::vector<size_t> ranks, folders;
  for (size_t number = 0; number < found.ranks.size(); ++number) {
    const RankFiles& rank = found.ranks[number];
    if (rank.model || rank.optimizer) ranks.push_back(number);
    if (!rank.swapped.empty()) folders.push_back(number);
  }
  if (ranks.size() != folders.size()) return;
  std::vector<std::map<std::string, uint32_t>> swapped;
  for (const size_t number : folders) swapped.push_back(std::exchange(found.ranks[number].swapped, {}));
  for (size_t at = 0; at < ranks.size(); ++at) found.ranks[ranks[at]].swapped = std::move(swapped[at]);
}

SwappedStates swapped_states(const RankFiles& rank) {
  SwappedStates found;
  for (const auto& [file_name, index] : rank.swapped) {
    const size_t dash = file_name.find('-');
    std::string_view group = std::string_view(file_name).substr(dash == std::string::npos ? 0 : dash + 1);
    group.remove_suffix(kSwapSuffix.size());
    found[group].push_back({parse_group_name(file_name)->state, index});
  }
  return found;
}

std::array<bool, kMoments.size()> swapped_moments(const ModelRankFiles& found) {
  std::array<bool, kMoments.size()> swapped{};
  for (const RankFiles& rank : found.ranks) {
    for (const auto& [file_name, index] : rank.swapped) {
      const std::string_view state = std::string_view(file_name).substr(0, file_name.find('-'));
      const auto* const moment = std::find(kMoments.begin(), kMoments.end(), state);
      if (moment != kMoments.end()) swapped.at(static_cast<size_t>(moment - kMoments.begin())) = true;
    }
  }
  return swapped;
}

}  // namespace ckptfs::meta::formats

#include "meta/formats/deepspeed_experts.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meta/formats/name_parts.h"
#include "meta/formats/pickle_access.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kExperts = ".deepspeed_moe.experts.deepspeed_experts.";
constexpr int64_t kMostExperts = 1 << 16;  // of all layers

// "moe.deepspeed_moe.experts.deepspeed_experts.1.0.weight" is "0.weight" of expert 1.
struct ExpertParameter {
  std::string_view layer;  // "moe.deepspeed_moe.experts.deepspeed_experts."
  uint64_t expert = 0;
  std::string_view rest;  // ".0.weight"
};

std::optional<ExpertParameter> parse(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == name.npos) return std::nullopt;
  const size_t end = at + kExperts.size();
  std::string_view rest = name.substr(end);
  const auto expert = take_number<uint64_t>(rest);
  if (!expert || *expert >= kMostExperts || !rest.starts_with('.')) return std::nullopt;
  return ExpertParameter{name.substr(0, end), *expert, rest};
}

bool is_of_experts(const ParameterGroup& group) {
  return !group.members.empty() &&
         std::ranges::all_of(group.members, [](const Member& member) { return parse(member.name).has_value(); });
}

// How many experts a rank has of each layer. They may be in several groups, since DeepSpeed splits large ones.
std::map<std::string, uint64_t, std::less<>> experts_of_rank(const DeepSpeedParts& parts) {
  std::map<std::string, uint64_t, std::less<>> counts;
  for (const ParameterGroup& group : parts.groups) {
    for (const Member& member : group.members) {
      const auto parameter = parse(member.name);
      if (!parameter) continue;
      auto found = counts.find(parameter->layer);
      if (found == counts.end()) found = counts.emplace(parameter->layer, 0).first;
      found->second = std::max(found->second, parameter->expert + 1);
    }
  }
  return counts;
}

}  // namespace

void Experts::expect(const std::optional<Pickle::Value>& counts, const std::optional<Pickle::Value>& config) {
  const auto data_first = find(config, "use_data_before_expert_parallelism");
  data_first_ = data_first && data_first->boolean() == true;
  int64_t all = 0;
  std::vector<unsigned> of_layers;
  for (size_t layer = 0; counts && layer < counts->size(); ++layer) {
    const auto count = (*counts)[layer].integer();
    if (!count || *count <= 0 || *count > kMostExperts - all)
      return step_.builder.give_up(std::nullopt, "its numbers of experts cannot be read");
    all += *count;
    of_layers.push_back(static_cast<unsigned>(*count));
  }
  any_ = !of_layers.empty();
  for (unsigned layer = 0; layer < of_layers.size(); ++layer) {
    for (unsigned expert = 0; expert < of_layers[layer]; ++expert) {
      const ExpertName name{layer, expert};
      if (!step_.found.experts.contains(name))
        step_.lacks(expert_name(name), "it has experts, and " + step_.folder + expert_name(name) + " is not there");
    }
  }
  const size_t others = std::erase_if(step_.found.experts, [&](const auto& found) {
    return found.first.layer >= of_layers.size() || found.first.expert >= of_layers[found.first.layer];
  });
  if (others > 0) step_.builder.left_out(std::nullopt, "files of more experts than it has lie here, of another save");
}

void Experts::spread(DeepSpeedParts& parts, const std::optional<Pickle::Value>& partitions, uint64_t ranks) {
  const auto of_rank = experts_of_rank(parts);
  for (size_t at = 0, end = parts.groups.size(); at < end; ++at) {
    const auto told = partitions && at < partitions->size() ? (*partitions)[at].integer() : std::nullopt;
    const int64_t holders = told.value_or(0);
    if (!is_of_experts(parts.groups[at])) {
      if (!told || holders == static_cast<int64_t>(ranks)) continue;
      return step_.builder.give_up(std::nullopt, "not all ranks have a part of what is of no experts");
    }
    const auto parted = static_cast<uint64_t>(holders);
    if (holders <= 0 || ranks % parted != 0)
      return step_.builder.give_up(std::nullopt, "over how many ranks its experts are spread cannot be told");
    parts.groups[at].holders = parted;
    const Spread& to = spread_[at] = {parts.groups.size(), parted, ranks / parted};
    for (uint64_t other = 1; other < to.owners; ++other) {
      ParameterGroup group;
      group.holders = parted;
      for (const Member& member : parts.groups[at].members) {
        const ExpertParameter parameter = *parse(member.name);
        const uint64_t number = other * of_rank.find(parameter.layer)->second + parameter.expert;
        Member own = member;
        own.name = std::string(parameter.layer) + std::to_string(number) + std::string(parameter.rest);
        if (!step_.builder.has_room_for(own)) return;
        group.members.push_back(std::move(own));
      }
      parts.groups.push_back(std::move(group));
    }
  }
}

Experts::Place Experts::place_of(size_t group, size_t rank) const {
  const auto found = spread_.find(group);
  if (found == spread_.end()) return {group, rank};
  const auto [first, holders, owners] = found->second;
  const size_t owner = data_first_ ? rank / holders : rank % owners;
  return {owner == 0 ? group : first + owner - 1, data_first_ ? rank % holders : rank / owners};
}

void Experts::read_file(uint32_t index, uint64_t number, const Trained& trained, DeepSpeedParts& parts) {
  step_.builder.with_file(index, [&](TorchFile& file) {
    for (size_t at = 0; at < file.root().pairs(); ++at) {
      const auto [key, value] = file.root().pair(at);
      const auto name = short_text(key);
      const auto parameter = name ? parse(*name) : std::nullopt;
      if (!parameter || parameter->expert != number)
        return step_.builder.give_up(index, "it has what is not of its expert");
      auto tensor = step_.builder.whole(index, file, value, std::string(*name));
      if (!tensor) continue;
      const auto known = trained.find(*name);
      if (known == trained.end()) {
        if (!step_.builder.add_whole(*name, Parameter::Kind::frozen, *std::move(tensor))) return;
      } else if (tensor->shape != known->second->shape) {
        return step_.builder.give_up(index, std::string(*name) + " has another shape than its optimizer knows");
      } else if (step_.builder.has_room(*tensor)) {
        parts.compute.emplace(*name, *std::move(tensor));
      }
    }
  });
}

void Experts::read(DeepSpeedParts& parts) {
  Trained trained;
  for (const ParameterGroup& group : parts.groups) {
    for (const Member& member : group.members) {
      const bool doubled = parse(member.name) && !trained.emplace(member.name, &member).second;
      if (doubled) return step_.builder.give_up(std::nullopt, "two ranks have " + member.name);
    }
  }
  for (const auto& [expert, index] : step_.found.experts) read_file(index, expert.expert, trained, parts);
  if (step_.is_share) return;  // another machine may have the others' files
  for (const auto& [name, member] : trained) {
    if (!parts.compute.contains(member->name) && !step_.builder.is_given_up())
      return step_.builder.problem(std::nullopt, "no file of an expert has " + member->name);
  }
}

}  // namespace ckptfs::meta::formats

#include "meta/formats/deepspeed_pipeline.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "meta/formats/name_parts.h"
#include "meta/formats/pickle_access.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {
namespace {

constexpr size_t kMostTied = 64;

// "3.weight" is of layer 3.
std::optional<unsigned> layer_of(std::string_view name) {
  const auto layer = take_number<unsigned>(name);
  return name.starts_with('.') ? layer : std::nullopt;
}

// "tied_modules.embed.weight" is "weight" of "embed". A key has no dot.
std::optional<std::pair<std::string, std::string>> tied_name(std::string_view name) {
  if (!skip(name, "tied_modules.")) return std::nullopt;
  const size_t dot = name.find('.');
  if (dot == name.npos) return std::nullopt;
  return std::pair(std::string(name.substr(0, dot)), std::string(name.substr(dot + 1)));
}

std::optional<Shape> shape_in(const Pickle::Value& value) {
  const auto tensor = TorchFile::tensor(value);
  return tensor && tensor.value() ? std::optional(tensor.value()->shape) : std::nullopt;
}

}  // namespace

void PipelineLayers::read_stage(DeepSpeedParts& parts, const std::vector<std::string>& buffers) {
  Trained trained;
  std::set<unsigned> layers;
  for (const ParameterGroup& group : parts.groups) {
    for (const Member& member : group.members) {
      if (const auto layer = layer_of(member.name)) {
        layers.insert(*layer);
        trained.emplace(member.name, &member);
      } else if (auto tied = tied_name(member.name)) {
        if (!step_.builder.has_room_for(member)) return;
        tied_[tied->first].emplace(std::move(tied->second), member.shape);
      } else {
        return step_.builder.give_up(std::nullopt, member.name + " is of no layer of a pipeline");
      }
    }
  }
  for (const std::string& buffer : buffers) {
    if (const auto layer = layer_of(buffer)) layers.insert(*layer);
  }
  const std::set<std::string, std::less<>> names(buffers.begin(), buffers.end());
  for (const unsigned layer : layers) read_layer(layer, trained, names, parts);
}

void PipelineLayers::read_layer(unsigned layer, const Trained& trained,
                                const std::set<std::string, std::less<>>& buffers, DeepSpeedParts& parts) {
  const auto found = step_.found.layers.find(layer);
  if (found == step_.found.layers.end())
    return step_.lacks(layer_name(layer), "layer " + std::to_string(layer) + " has no " + layer_name(layer));
  taken_.insert(layer);
  const uint32_t index = found->second;
  step_.builder.with_file(index, [&](TorchFile& file) {
    std::set<std::string, std::less<>> seen;
    for (size_t at = 0; at < file.root().pairs(); ++at) {
      const auto [key, value] = file.root().pair(at);
      const auto within = short_text(key);
      if (!within) continue;
      const std::string name = std::to_string(layer) + "." + std::string(*within);
      const auto known = trained.find(name);
      auto tensor = step_.builder.whole(index, file, value, name);
      if (!tensor || !seen.insert(name).second) continue;
      if (known == trained.end()) {
        const auto kind = buffers.contains(name) ? Parameter::Kind::buffer : Parameter::Kind::frozen;
        if (!step_.builder.add_whole(name, kind, *std::move(tensor))) return;
      } else if (tensor->shape != known->second->shape) {
        return step_.builder.problem(index, name + " has another shape than its optimizer knows");
      } else if (step_.builder.has_room(*tensor)) {
        parts.compute.emplace(name, *std::move(tensor));
      }
    }
    const std::string prefix = std::to_string(layer) + ".";
    for (auto at = trained.lower_bound(prefix); at != trained.end() && at->first.starts_with(prefix); ++at) {
      if (!seen.contains(at->first))
        step_.builder.problem(index, "it has no " + std::string(at->first.substr(prefix.size())));
    }
  });
}

// Returns the keys of the tied modules that the file has all of. What it has beyond that is told.
std::vector<std::string_view> PipelineLayers::tied_in(uint32_t index) {
  std::vector<std::string_view> keys;
  step_.builder.with_file(index, [&](TorchFile& file) {
    const auto here = by_name(file.root());
    size_t most = 0;
    for (const auto& [key, module] : tied_) {
      const bool has_all = std::ranges::all_of(module, [&](const auto& named) {
        const auto found = here.find(named.first);
        return found != here.end() && shape_in(found->second) == named.second;
      });
      if (!has_all) continue;
      keys.push_back(key);
      most = std::max(most, module.size());
    }
    if (here.size() > most) step_.builder.left_out(index, "no optimizer has all of it, and its names are not known");
  });
  return keys;
}

void PipelineLayers::read_tied() {
  std::set<std::string_view> found;
  if (tied_.size() > kMostTied) return step_.builder.give_up(std::nullopt, "it has too many tied modules");
  for (const auto& [layer, index] : step_.found.layers) {
    if (!taken_.contains(layer)) std::ranges::copy(tied_in(index), std::inserter(found, found.end()));
  }
  const auto& layers = step_.found.layers;
  if (!layers.empty() && layers.size() <= layers.rbegin()->first && !step_.is_share)
    step_.builder.left_out(std::nullopt,
                           "a layer has no file: it is a function, or its parameters are frozen and lost");
  for (const auto& [key, module] : tied_) {
    const std::string why = "no file of a layer has " + key + ", which layers share";
    if (found.contains(key)) continue;
    step_.is_share ? step_.share.add_unclear(why) : step_.lacks({}, why);
  }
}

void join_stages(MapBuilder& builder) {
  std::vector<Parameter>& parameters = builder.map().parameters;
  std::set<std::string, std::less<>> seen;
  const auto repeated = [&](const Parameter& one) {
    if (seen.insert(one.name).second) return false;
    if (!tied_name(one.name)) builder.give_up(std::nullopt, "two stages have " + one.name);
    return true;
  };
  std::erase_if(parameters, repeated);
}

}  // namespace ckptfs::meta::formats

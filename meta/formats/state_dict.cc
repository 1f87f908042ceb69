#include "meta/formats/state_dict.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "io/text.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::array<std::string_view, 3> kModelKeys{"model", "module", "state_dict"};
constexpr std::array<std::string_view, 3> kOptimizerKeys{"optim", "optimizer", "optimizers"};
constexpr const char* kOther = "value";
// Megatron names the tensors of its optimizer so, each by the name of its parameter behind the state's.
constexpr std::string_view kMegatronOptimizer = "optimizer.", kMegatronState = "optimizer.state.";
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kMegatronStates{
    {{"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}, {"fp32_param", "fp32"}}};

// A state that the optimizer keeps of a parameter.
struct State {
  std::string parameter;
  std::string name;
};

// Of several optimizers each has a number: "chained_0.optimizer.state.exp_avg.output_layer.weight".
std::string_view without_chain(std::string_view name) {
  const size_t dot = name.find('.');
  const bool chained = name.starts_with("chained_") && dot != name.npos;
  return chained && name.substr(dot + 1).starts_with(kMegatronOptimizer) ? name.substr(dot + 1) : name;
}

// Parses "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight".
std::optional<State> megatron_state_of(std::string_view name) {
  name = without_chain(name);
  if (!name.starts_with(kMegatronState)) return std::nullopt;
  name.remove_prefix(kMegatronState.size());
  const size_t dot = name.find('.');
  const auto* const known = std::ranges::find_if(
      kMegatronStates, [&](const auto& one) { return dot != name.npos && one.first == name.substr(0, dot); });
  if (known == kMegatronStates.end()) return std::nullopt;
  return State{std::string(name.substr(dot + 1)), std::string(known->second)};
}

// "optim", "optimizer_0"
bool is_optimizer_key(std::string_view key) {
  const size_t end = key.find_last_not_of("0123456789");
  if (end != key.npos && end + 1 < key.size() && key[end] == '_') key = key.substr(0, end);
  return std::ranges::find(kOptimizerKeys, key) != kOptimizerKeys.end();
}

std::optional<State> split_at_last_dot(std::string_view text) {
  const size_t dot = text.rfind('.');
  if (dot == text.npos || dot == 0) return std::nullopt;
  return State{std::string(text.substr(0, dot)), std::string(text.substr(dot + 1))};
}

// Parses ("optim", "state", "layers.0.weight", "exp_avg"), ("optimizer", "state.layers.0.weight.exp_avg") or
// ("optimizer", "layers.0.weight.exp_avg"). In the last form only a state's usual name tells that it is one.
std::optional<State> state_of(const Keys& keys) {
  constexpr std::string_view key = "state", prefix = "state.";
  for (size_t at = 0; at + 2 < keys.size(); ++at) {
    if (keys[at] == key)
      return State{io::joined(std::span(keys).subspan(at + 1).first(keys.size() - at - 2), "."), keys.back()};
  }
  const std::string_view last = keys.back();
  if (last.starts_with(prefix)) return split_at_last_dot(last.substr(prefix.size()));
  const bool below = keys.size() == 2 && is_optimizer_key(keys.front());
  return below && (is_named_as_state(last) || last.ends_with(".step")) ? split_at_last_dot(last) : std::nullopt;
}

// Keys that lead to everything, and to the model below them, tell nothing: ("app", "model", ...), ("app", "optim",
// ...).
bool drop_common_keys(std::vector<SavedTensor>& saved) {
  bool dropped = false;
  std::map<std::string_view, std::vector<SavedTensor*>> folders;
  for (SavedTensor& one : saved) folders[one.folder].push_back(&one);
  for (const auto& [folder, all] : folders) {
    const std::string key = all.front()->keys.front();
    const auto has_key = [&](const SavedTensor* one) { return one->keys.size() > 1 && one->keys.front() == key; };
    const auto leads_to_model = [](const SavedTensor* one) {
      return one->keys.size() > 2 && std::ranges::find(kModelKeys, one->keys[1]) != kModelKeys.end();
    };
    if (!std::ranges::all_of(all, has_key) || std::ranges::none_of(all, leads_to_model)) continue;
    for (SavedTensor* const one : all) one->keys.erase(one->keys.begin());
    dropped = true;
  }
  return dropped;
}

// Sorts the tensors by the parameters that they belong to.
class Sorted {
 public:
  Sorted(std::vector<SavedTensor> saved, bool megatron) : megatron_(megatron) {
    const bool below_another = drop_common_keys(saved);
    const auto has_key = [&](std::string_view key) {
      return std::ranges::any_of(saved,
                                 [&](const SavedTensor& one) { return one.keys.size() > 1 && one.keys[0] == key; });
    };
    const auto* const key = std::ranges::find_if(kModelKeys, has_key);
    if (key != kModelKeys.end()) model_key_ = *key;
    const auto is_weight = [this](const SavedTensor& one) { return weight_name(one.keys) && !state(one.keys); };
    const auto rest = std::stable_partition(saved.begin(), saved.end(), is_weight);
    std::set<std::string> models;
    for (auto one = saved.begin(); one != rest; ++one) models.insert(one->folder);
    several_ = models.size() > 1;
    if (below_another && !several_) find_wrapper({saved.begin(), rest}, {rest, saved.end()});
    for (auto one = saved.begin(); one != rest; ++one) add_weight(std::move(*one));
    for (auto one = rest; one != saved.end(); ++one) add_rest(std::move(*one));
  }

  static TensorMap named(std::vector<SavedTensor> saved, bool several) {
    Sorted map(std::vector<SavedTensor>{}, false);
    for (SavedTensor& one : saved) {
      map.add((several ? one.folder : "") + one.name, Parameter::Kind::trained, kParam, std::move(one.tensor));
    }
    return map.take();
  }

  TensorMap take() { return std::move(map_); }

 private:
  std::optional<State> state(const Keys& keys) const {
    return megatron_ ? megatron_state_of(keys.front()) : state_of(keys);
  }

  bool is_of_megatrons_optimizer(const Keys& keys) const {
    return megatron_ && without_chain(keys.front()).starts_with(kMegatronOptimizer);
  }

  std::optional<std::string> weight_name(const Keys& keys) const {
    if (is_of_megatrons_optimizer(keys)) return std::nullopt;
    if (model_key_.empty()) return keys.size() == 1 ? std::optional(keys.front()) : std::nullopt;
    if (keys.size() < 2 || keys.front() != model_key_) return std::nullopt;
    std::string name = io::joined(std::span(keys).subspan(1), ".");
    if (name.starts_with(wrapper_)) name.erase(0, wrapper_.size());
    return name;
  }

  // Composer names the model's parameters as those of a module that wraps it, and the optimizer's as the model's own.
  void find_wrapper(std::span<const SavedTensor> weights, std::span<const SavedTensor> rest) {
    std::set<std::string> names, of_states;
    for (const SavedTensor& one : weights) names.insert(*weight_name(one.keys));
    for (const SavedTensor& one : rest) {
      if (auto known = state(one.keys)) of_states.insert(std::move(known->parameter));
    }
    if (model_key_.empty() || names.empty() || of_states.empty()) return;
    const std::string wrapper = names.begin()->substr(0, names.begin()->find('.') + 1);
    const auto is_wrapped = [&](const std::string& name) { return !wrapper.empty() && name.starts_with(wrapper); };
    const auto is_of_wrapped = [&](const std::string& name) {
      return names.contains(wrapper + name) && !names.contains(name);
    };
    if (std::ranges::all_of(names, is_wrapped) && std::ranges::all_of(of_states, is_of_wrapped)) wrapper_ = wrapper;
  }

  // Is it known to be for a resume only, whatever parameter it is of?
  bool is_for_resume(const Keys& keys) const {
    if (megatron_) return is_of_megatrons_optimizer(keys);
    return keys.size() > 1 && is_optimizer_key(keys.front()) && state_of(keys);
  }

  // If there are several models, each name gets the model's folder as a prefix.
  void add_weight(SavedTensor one) {
    const std::string prefix = several_ ? one.folder : std::string();
    const std::string name = *weight_name(one.keys);
    if (is_flat(name))
      add_problem(map_, {"", name + " holds several parameters, whose names are not in it", Problem::Kind::left_out});
    add(prefix + name, Parameter::Kind::trained, kParam, std::move(one.tensor));
  }

  // Adds a state of a known parameter, or a weight whose name only looks like a state, or a tensor that is neither.
  void add_rest(SavedTensor one) {
    const auto state = several_ ? std::nullopt : this->state(one.keys);
    const auto of = state ? known_.find(state->parameter) : known_.end();
    if (of != known_.end() && fits(map_.parameters[of->second], *state, one.tensor)) {
      map_.parameters[of->second].states.emplace(state->name, std::move(one.tensor));
    } else if (weight_name(one.keys)) {
      add_weight(std::move(one));
    } else {
      std::string name = io::joined(one.keys, ".");
      if (known_.contains(name)) name.insert(0, one.folder);
      const auto kind = is_for_resume(one.keys) ? Parameter::Kind::resume : Parameter::Kind::other;
      add(name, kind, kOther, std::move(one.tensor));
    }
  }

  // Megatron can save its optimizer's states flat: then no element of them has a known place.
  bool fits(const Parameter& parameter, const State& state, const Tensor& tensor) const {
    if (parameter.states.contains(state.name)) return false;
    return !megatron_ || parameter.states.begin()->second.shape == tensor.shape;
  }

  void add(const std::string& name, Parameter::Kind kind, const char* state, Tensor tensor) {
    if (!known_.emplace(name, map_.parameters.size()).second) {
      add_problem(map_, {"", name + " is there twice"});
      return;
    }
    Parameter parameter{name, kind, std::nullopt, {}};
    parameter.states.emplace(state, std::move(tensor));
    map_.parameters.push_back(std::move(parameter));
  }

  const bool megatron_;
  std::string_view model_key_;  // empty: the model's tensors are at the top
  std::string wrapper_;         // "model."
  bool several_ = false;        // several folders have a model
  std::map<std::string, size_t> known_;
  TensorMap map_;
};

}  // namespace

TensorMap by_parameter(std::vector<SavedTensor> saved, bool megatron) {
  return Sorted(std::move(saved), megatron).take();
}

TensorMap by_saved_name(std::vector<SavedTensor> saved, bool several) {
  return Sorted::named(std::move(saved), several);
}

bool are_nested(const std::vector<std::string>& names) {
  std::set<std::string> parameters;
  for (const std::string& name : names) {
    const Keys keys = keys_of_nested(name);
    if (keys.size() == 2 && std::ranges::find(kModelKeys, keys[0]) != kModelKeys.end()) parameters.insert(keys[1]);
  }
  return std::ranges::any_of(names, [&](const std::string& name) {
    const Keys keys = keys_of_nested(name);
    const auto state = keys.size() == 2 && is_optimizer_key(keys[0]) ? state_of(keys) : std::nullopt;
    return state && parameters.contains(state->parameter);
  });
}

Keys keys_of_nested(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == name.npos ? Keys{name} : Keys{name.substr(0, dot), name.substr(dot + 1)};
}

bool is_named_as_state(std::string_view name) {
  constexpr std::array<std::string_view, 4> kStates{"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"};
  return std::ranges::find(kStates, name.substr(name.rfind('.') + 1)) != kStates.end();
}

bool is_megatron_state(std::string_view name) {
  return name.find(kMegatronState) != name.npos && megatron_state_of(name);
}

}  // namespace ckptfs::meta::formats

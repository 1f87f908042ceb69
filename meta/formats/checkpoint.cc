#include "meta/formats/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "io/fd.h"
#include "meta/formats/dcp.h"
#include "meta/formats/deepspeed.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/file_kinds.h"
#include "meta/formats/pickle_access.h"
#include "meta/formats/rank_pickles.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/saved_step.h"
#include "meta/formats/torch_file.h"
#include "meta/formats/weight_index.h"

namespace ckptfs::meta::formats {
namespace {

// Returns the folder of the DeepSpeed checkpoint in a Trainer's or accelerate's: "global_step500/". Of several it is
// the one with the highest number, which was saved last.
std::optional<std::string> inner_folder(const StepFiles& files) {
  std::optional<std::string> found;
  uint64_t newest = 0;
  for (const StepFiles::File& file : files.list()) {
    const size_t slash = file.path.find('/');
    if (slash == std::string::npos) continue;
    const auto number = inner_number(std::string_view(file.path).substr(0, slash));
    if (!number || (found && *number <= newest)) continue;
    if (!is_deepspeed_file(std::string_view(file.path).substr(slash + 1))) continue;
    found = file.path.substr(0, slash + 1);
    newest = *number;
  }
  return found;
}

// `shards`: may it be one of those that DCP's writer for Hugging Face makes of each rank's part?
// Source: torch/distributed/checkpoint/_hf_utils.py
void add_safetensors(const StepFiles& files, uint32_t index, bool shards, TensorMap& map, MapBudget& budget) {
  constexpr const char* kSharding = "DCP_SHARDING_INFO";
  const std::string& path = files.list()[index].path;
  const auto file = files.open(index);
  auto header = file ? read_safetensors_header(files.limited(file.value()), shards ? "" : kSharding) : file.error();
  if (!header) return add_problem(map, {path, header.error().message()});
  if (header.value().metadata.contains(kSharding)) {
    const char* const why = "it holds a rank's part of each tensor, and does not tell of how many; consolidate them";
    return add_problem(map, {path, why, Problem::Kind::left_out});
  }
  for (SafeTensor& tensor : header.value().tensors) {
    Tensor whole{tensor.dtype, std::move(tensor.shape), {{index, tensor.offset, tensor.size}}};
    if (!budget.add(map, tensor.name, std::move(whole))) return add_problem(map, {path, kTooManyTensors});
  }
}

void add_torch_weights(const StepFiles& files, uint32_t index, TensorMap& map, MapBudget& budget) {
  const std::string& path = files.list()[index].path;
  const auto descriptor = files.open(index);
  auto file = descriptor ? TorchFile::open(files.limited(descriptor.value())) : descriptor.error();
  if (!file) return add_problem(map, {path, file.error().message()});
  const Pickle::Value root = file.value().root();
  for (size_t at = 0; at < root.pairs(); ++at) {
    const auto [key, value] = root.pair(at);
    const auto name = short_text(key);
    const auto placed = [&, &of = value]() -> Result<Tensor> {
      TRY_ASSIGN(auto tensor, TorchFile::tensor(of));
      if (!tensor) return Error(EBADMSG, "not a tensor");
      TRY_ASSIGN(const FileRange range, file.value().range(*tensor));
      return Tensor{tensor->dtype, std::move(tensor->shape), {{index, range.offset, range.size}}};
    }();
    if (!name || !placed) {
      const std::string reason = placed ? "a tensor whose name is none" : placed.error().message();
      add_problem(map, {path, name ? std::string(*name) + ": " + reason : reason});
      continue;
    }
    if (!budget.add(map, *name, placed.value())) return add_problem(map, {path, kTooManyTensors});
  }
}

// "model-00002-of-00002.safetensors"
bool is_shard(std::string_view name) {
  const size_t of = name.find("-of-");
  return of != name.npos && !name.substr(of).starts_with("-of-00001.");
}

// Chooses the files that transformers would load: a whole file, else those that an index names, else the only one with
// this ending. Other files may be left from an earlier save. Ranks' files of a step that libckptfs saved are none: they
// may hold pieces.
std::set<std::string> weight_files(const StepFiles& files, const std::string& whole, const std::string& ending,
                                   TensorMap& map) {
  std::set<std::string> candidates;
  std::optional<uint32_t> index_file;
  const bool saved = is_saved_step(files);
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (path == whole) return {whole};
    if (path == whole + ".index.json") index_file = index;
    const bool weights = lies_at_top(path) && path.ends_with(ending) && !kind_of(path).is_resume_state();
    if (weights && !(saved && is_rank_file(path))) candidates.insert(path);
  }
  if (!index_file && candidates.size() == 1 && is_shard(*candidates.begin())) {
    add_problem(map,
                {*candidates.begin(), "it is one of several, and no index names the others", Problem::Kind::left_out});
    return {};
  }
  if (!index_file) return candidates.size() == 1 ? candidates : std::set<std::string>();
  auto named = files_of_index(files, *index_file);
  if (!named) {
    add_problem(map, {files.list()[*index_file].path, named.error().message()});
    return {};
  }
  for (const std::string& name : named.value()) {
    if (!candidates.contains(name))
      add_problem(map, {name, "the index names it, and it is not there", Problem::Kind::missing});
  }
  return std::move(named).value();
}

void add_weights(const StepFiles& files, TensorMap& map, const MapOptions& options) {
  const auto safe = weight_files(files, "model.safetensors", ".safetensors", map);
  const auto torch = safe.empty() ? weight_files(files, "pytorch_model.bin", ".bin", map) : std::set<std::string>();
  MapBudget budget(options);
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (safe.contains(path)) add_safetensors(files, index, false, map, budget);
    if (torch.contains(path) && path.starts_with("pytorch_model")) add_torch_weights(files, index, map, budget);
  }
  std::set<std::string_view> names;
  for (const Parameter& parameter : map.parameters) {
    if (!names.insert(parameter.name).second) add_problem(map, {"", parameter.name + " is there twice"});
  }
}

void append(TensorMap& map, TensorMap more) {
  std::ranges::move(more.parameters, std::back_inserter(map.parameters));
  for (Problem& problem : more.problems) add_problem(map, std::move(problem));
}

// The name that PEFT gives in its files to what is called so in the model: "lora_A.default.weight".
std::string name_in_adapter(const std::string& name) {
  constexpr std::string_view adapter = ".default", module = ".modules_to_save";
  size_t at = name.rfind(std::string(adapter) + ".");
  if (at == std::string::npos && name.ends_with(adapter)) at = name.size() - adapter.size();
  if (at == std::string::npos) return name;
  std::string before = name.substr(0, at);
  if (before.ends_with(module)) before.resize(before.size() - module.size());
  return before + name.substr(at + adapter.size());
}

// Where an adapter was trained its file is the model, and DeepSpeed's files have the optimizer's states of its tensors.
void take_adapter(const StepFiles& files, TensorMap& map, const MapOptions& options) {
  const auto index = index_of(files.list(), kAdapterName);
  if (!index) return;
  TensorMap adapter;
  MapBudget budget(options);
  add_safetensors(files, *index, false, adapter, budget);
  std::map<std::string_view, Parameter*> by_name;
  for (Parameter& parameter : adapter.parameters) {
    parameter.kind = Parameter::Kind::frozen;  // unless DeepSpeed has it, too
    by_name.emplace(parameter.name, &parameter);
  }
  // What has nothing in common with what was trained is no adapter of it.
  const auto is_in_it = [&](const Parameter& one) { return by_name.contains(name_in_adapter(one.name)); };
  if (std::ranges::none_of(map.parameters, is_in_it)) {
    for (const Problem& problem : adapter.problems)
      add_problem(map, {problem.file, problem.reason, Problem::Kind::left_out});
    return;
  }
  for (Parameter& parameter : std::exchange(map.parameters, {})) {
    const auto known = by_name.find(name_in_adapter(parameter.name));
    const auto master = parameter.states.find("fp32");
    const bool same = known != by_name.end() && master != parameter.states.end() &&
                      master->second.shape == known->second->states.at(kParam).shape;
    if (same) {
      known->second->kind = parameter.kind;
      known->second->ds_id = parameter.ds_id;
      known->second->states.merge(parameter.states);
    } else {
      parameter.kind = Parameter::Kind::other;
      map.parameters.push_back(std::move(parameter));
    }
  }
  std::erase_if(map.problems, [](const Problem& problem) { return problem.reason == kExcludesFrozen; });
  append(map, std::move(adapter));
}

}  // namespace

std::optional<std::string> deepspeed_folder(const StepFiles& files) {
  return is_deepspeed(files, "") ? std::optional(std::string()) : inner_folder(files);
}

TensorMap read_safetensors(const StepFiles& files, uint32_t index, const MapOptions& options) {
  TensorMap map;
  MapBudget budget(options);
  add_safetensors(files, index, true, map, budget);
  return map;
}

TensorMap read_checkpoint(const StepFiles& files, const MapOptions& options) {
  TensorMap map;
  if (const auto folder = deepspeed_folder(files)) {
    map = read_deepspeed(files, *folder, options);
    take_adapter(files, map, options);
  } else {
    map = read_dcp(files, options);
  }
  if (map.parameters.empty() && is_saved_step(files)) append(map, read_saved_step(files, options));
  if (map.parameters.empty()) append(map, read_rank_pickles(files, options));
  if (map.parameters.empty()) add_weights(files, map, options);
  if (!files.refused()) return map;
  TensorMap nothing;
  add_problem(nothing, {"", files.refused()->message()});
  return nothing;
}

}  // namespace ckptfs::meta::formats

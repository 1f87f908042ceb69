#include "meta/formats/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

#include "io/fd.h"
#include "meta/formats/dcp.h"
#include "meta/formats/deepspeed.h"
#include "meta/formats/manifest.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/torch_file.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

constexpr uint64_t kMostIndex = uint64_t{16} << 20;  // bytes of model.safetensors.index.json

// The folder of the DeepSpeed checkpoint in a Trainer's: "global_step500/", of several the one that was saved last.
std::optional<std::string> inner_folder(const StepFiles& files) {
  std::optional<std::string> found;
  uint64_t newest = 0;
  for (const StepFiles::File& file : files.list()) {
    const size_t slash = file.path.find('/');
    if (slash == std::string::npos) continue;
    const auto number = step_number(file.path.substr(0, slash));
    if (!number || (found && *number <= newest)) continue;
    const std::string folder = file.path.substr(0, slash + 1);
    if (!is_deepspeed(files, folder)) continue;
    found = folder;
    newest = *number;
  }
  return found;
}

bool is_at_top(const std::string& path) { return path.find('/') == std::string::npos; }

void add_safetensors(const StepFiles& files, uint32_t index, TensorMap& map, const std::string& prefix = {}) {
  const std::string& path = files.list()[index].path;
  const auto file = files.open(index);
  const auto header = file ? read_safetensors_header(file.value().get()) : file.error();
  if (!header) {
    map.problems.push_back({path, header.error().message()});
    return;
  }
  for (const SafeTensor& tensor : header.value().tensors) {
    Parameter parameter{prefix + tensor.name, Parameter::Kind::trained, std::nullopt, {}};
    parameter.states[kParam] = {tensor.dtype, tensor.shape, {{index, tensor.offset, tensor.size}}};
    map.parameters.push_back(std::move(parameter));
  }
}

void add_torch_weights(const StepFiles& files, uint32_t index, TensorMap& map) {
  const std::string& path = files.list()[index].path;
  const auto descriptor = files.open(index);
  auto file = descriptor ? TorchFile::open(descriptor.value().get()) : descriptor.error();
  if (!file) {
    map.problems.push_back({path, file.error().message()});
    return;
  }
  const Pickle::Value root = file.value().root();
  for (size_t at = 0; at < root.pairs(); ++at) {
    const auto [name, value] = root.pair(at);
    const auto placed = [&, &of = value]() -> Result<Tensor> {
      TRY_ASSIGN(const auto tensor, TorchFile::tensor(of));
      if (!tensor) return Error(EBADMSG, "not a tensor");
      TRY_ASSIGN(const FileRange range, file.value().range(*tensor));
      return Tensor{tensor->dtype, tensor->shape, {{index, range.offset, range.size}}};
    }();
    const std::string known = name.text() ? std::string(*name.text()) : std::string();
    if (!name.text() || !placed) {
      const std::string reason = placed ? "a tensor whose name is no text" : placed.error().message();
      map.problems.push_back({path, known.empty() ? reason : known + ": " + reason});
      continue;
    }
    Parameter parameter{known, Parameter::Kind::trained, std::nullopt, {}};
    parameter.states.emplace(kParam, placed.value());
    map.parameters.push_back(std::move(parameter));
  }
}

// The files that an index names: {"weight_map": {"layers.0.weight": "model-00001-of-00002.safetensors", ...}}
std::set<std::string> files_of_index(const StepFiles& files, uint32_t index, TensorMap& map) {
  const auto wrong = [&](const std::string& reason) {
    map.problems.push_back({files.list()[index].path, reason});
    return std::set<std::string>();
  };
  const auto text = files.read(index, kMostIndex);
  if (!text) return wrong(text.error().message());
  const auto parsed = nlohmann::json::parse(text.value(), nullptr, false);
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object()) {
    return wrong("it is no index of weights");
  }
  std::set<std::string> found;
  for (const auto& [name, of] : parsed["weight_map"].items()) {
    if (of.is_string()) found.insert(of.get<std::string>());
  }
  return found;
}

// As transformers looks for them: a whole file, else what an index names, else the only one there is. What else lies
// there may be of an earlier save.
std::set<std::string> weight_files(const StepFiles& files, const std::string& whole, const std::string& ending,
                                   TensorMap& map) {
  std::set<std::string> candidates;
  std::optional<uint32_t> index_file;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (path == whole) return {whole};
    if (path == whole + ".index.json") index_file = index;
    if (is_at_top(path) && path.ends_with(ending)) candidates.insert(path);
  }
  if (!index_file) return candidates.size() == 1 ? candidates : std::set<std::string>();
  auto named = files_of_index(files, *index_file, map);
  for (const std::string& name : named) {
    if (!candidates.contains(name))
      map.problems.push_back({name, "the index names it, and it is not there", Problem::Kind::missing});
  }
  return named;
}

// What was saved through us: "rank00.safetensors" of each rank, which names its tensors as it likes.
void add_saved(const StepFiles& files, TensorMap& map) {
  constexpr std::string_view kEnding = ".safetensors";
  std::vector<uint32_t> found;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (path.ends_with(kEnding) && rank_of(path.substr(0, path.size() - kEnding.size()))) found.push_back(index);
  }
  for (const uint32_t index : found) {
    const std::string& path = files.list()[index].path;
    add_safetensors(files, index, map, found.size() == 1 ? "" : path.substr(0, path.size() - kEnding.size()) + "/");
  }
}

void add_weights(const StepFiles& files, TensorMap& map) {
  const auto safe = weight_files(files, "model.safetensors", ".safetensors", map);
  const auto torch = safe.empty() ? weight_files(files, "pytorch_model.bin", ".bin", map) : std::set<std::string>();
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (safe.contains(path)) add_safetensors(files, index, map);
    if (torch.contains(path) && path.starts_with("pytorch_model")) add_torch_weights(files, index, map);
  }
  std::set<std::string_view> names;
  for (const Parameter& parameter : map.parameters) {
    if (!names.insert(parameter.name).second) map.problems.push_back({"", parameter.name + " is there twice"});
  }
}

}  // namespace

TensorMap read_safetensors(const StepFiles& files, uint32_t index) {
  TensorMap map;
  add_safetensors(files, index, map);
  return map;
}

TensorMap read_checkpoint(const StepFiles& files) {
  TensorMap map;
  if (is_deepspeed(files, "")) {
    map = read_deepspeed(files, "");
  } else if (const auto folder = inner_folder(files)) {
    map = read_deepspeed(files, *folder);
  } else {
    map = read_dcp(files);
  }
  const bool saved_by_us = std::ranges::any_of(files.list(), is_manifest_name, &StepFiles::File::path);
  if (map.parameters.empty() && saved_by_us) add_saved(files, map);
  if (map.parameters.empty()) add_weights(files, map);
  return map;
}

}  // namespace ckptfs::meta::formats

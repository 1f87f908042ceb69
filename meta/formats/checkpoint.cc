#include "meta/formats/checkpoint.h"

#include <algorithm>

#include "meta/formats/deepspeed.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/torch_file.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

constexpr const char* kWeights = "param";

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

void add_safetensors(const StepFiles& files, uint32_t index, TensorMap& map) {
  const std::string& path = files.list()[index].path;
  const auto file = files.open(index);
  const auto header = file ? read_safetensors_header(file.value().get()) : file.error();
  if (!header) {
    map.problems.push_back({path, header.error().message()});
    return;
  }
  for (const SafeTensor& tensor : header.value().tensors) {
    Parameter parameter{tensor.name, Parameter::Kind::trained, std::nullopt, {}};
    parameter.states[kWeights] = {tensor.dtype, tensor.shape, {{index, tensor.offset, tensor.size}}};
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
    const auto tensor = TorchFile::tensor(value);
    const auto range = tensor && tensor.value() ? file.value().range(*tensor.value()) : Error(EBADMSG, "not a tensor");
    if (!name.text() || !range) {
      const std::string what = name.text() ? std::string(*name.text()) : "a tensor without a name";
      map.problems.push_back({path, what + ": " + (tensor ? range.error() : tensor.error()).message()});
      continue;
    }
    Parameter parameter{std::string(*name.text()), Parameter::Kind::trained, std::nullopt, {}};
    const auto [offset, size] = range.value();
    parameter.states[kWeights] = {tensor.value()->dtype, tensor.value()->shape, {{index, offset, size}}};
    map.parameters.push_back(std::move(parameter));
  }
}

// model.safetensors, model-00001-of-00002.safetensors, adapter_model.safetensors; pytorch_model.bin likewise.
void add_weights(const StepFiles& files, TensorMap& map) {
  bool found = false;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (!is_at_top(path) || !path.ends_with(".safetensors")) continue;
    add_safetensors(files, index, map);
    found = true;
  }
  for (uint32_t index = 0; !found && index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    if (is_at_top(path) && path.starts_with("pytorch_model") && path.ends_with(".bin")) {
      add_torch_weights(files, index, map);
    }
  }
}

}  // namespace

TensorMap read_checkpoint(const StepFiles& files) {
  TensorMap map;
  if (is_deepspeed(files, "")) {
    map = read_deepspeed(files, "");
  } else if (const auto folder = inner_folder(files)) {
    map = read_deepspeed(files, *folder);
  }
  if (map.parameters.empty()) add_weights(files, map);
  return map;
}

}  // namespace ckptfs::meta::formats

// Limits the memory for the map of one step. Without it, a pickle of a few kilobytes could contain one tensor a million
// times, and a header of a few megabytes could list millions of tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

inline constexpr const char* kTooManyRuns = "the tensors are cut into too many pieces";
inline constexpr const char* kTooManyTensors = "it has more tensors, or more pieces of them, than are read of one step";

// How a step is read. The defaults are the daemon's, which many steps of many users share. A program that reads one
// step of its own has more memory for it (gpu/checkpoint.cc).
struct MapOptions {
  uint64_t bytes = uint64_t{48} << 20;  // that the map may take in memory
  uint64_t runs = uint64_t{1} << 20;    // into which all tensors may be cut; a view has a piece for each
  bool boxes = false;                   // leave tensors that lie in boxes as they are (Tensor::boxes)
  // Of a DCP checkpoint: each tensor under the name that it was saved by, with the state kParam, and not sorted into
  // parameters and their states. Of several folders in one step each name gets its folder as a prefix.
  bool saved_names = false;
  // Of a step of ckptfs.Saver: sort its tensors into parameters and their states (state_dict.h). A view does. A load
  // names them as they were saved.
  bool sorts_saved = true;
};

// Thread safety: one thread at a time.
class MapBudget {
 public:
  explicit MapBudget(const MapOptions& options = {}) : options_(options), left_(options.bytes), runs_(options.runs) {}

  const MapOptions& options() const { return options_; }

  // Returns false if this exceeds the budget. After that, every call returns false.
  bool take(uint64_t bytes) {
    left_ = bytes <= left_ ? left_ - bytes : 0;
    return left_ > 0;
  }
  bool take(const Parameter& parameter) {
    uint64_t bytes = sizeof(Parameter) + parameter.name.size();
    for (const auto& [state, tensor] : parameter.states) bytes += bytes_of(tensor);
    return take(bytes);
  }
  // Adds a parameter that has this state alone. Returns false if it exceeds the budget.
  bool add(TensorMap& map, std::string_view name, Tensor tensor, Parameter::Kind kind = Parameter::Kind::trained) {
    Parameter parameter{std::string(name), kind, std::nullopt, {}};
    parameter.states.emplace(kParam, std::move(tensor));
    if (take(parameter)) map.parameters.push_back(std::move(parameter));
    return left_ > 0;
  }
  bool take(const Tensor& tensor) { return take(bytes_of(tensor)); }
  bool take(const PlacedBox& placed) { return take(bytes_of(placed)); }
  // The same for runs.
  bool take_runs(uint64_t count) {
    runs_ = count <= runs_ ? runs_ - count : 0;
    return runs_ > 0;
  }

 private:
  static uint64_t bytes_of(const PlacedBox& placed) {
    constexpr uint64_t kOfVectors = 32;
    return sizeof(PlacedBox) + kOfVectors + 2 * placed.box.sizes.size() * sizeof(uint64_t);
  }
  static uint64_t bytes_of(const Tensor& tensor) {
    constexpr uint64_t kOfContainers = 192;
    uint64_t bytes = kOfContainers + tensor.shape.size() * sizeof(uint64_t) + tensor.pieces.size() * sizeof(Piece);
    for (const PlacedBox& placed : tensor.boxes) bytes += bytes_of(placed);
    return bytes;
  }

  MapOptions options_;
  uint64_t left_ = 0;
  uint64_t runs_ = 0;
};

}  // namespace ckptfs::meta::formats

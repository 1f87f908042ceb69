// Limits the memory for the map of one step. Without it, a pickle of a few kilobytes could contain one tensor a million
// times, and a header of a few megabytes could list millions of tensors.
#pragma once

#include <cstdint>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

inline constexpr const char* kTooManyTensors = "it has more tensors, or more pieces of them, than are read of one step";

// Thread safety: one thread at a time.
class MapBudget {
 public:
  static constexpr uint64_t kMost = uint64_t{48} << 20;  // bytes

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
  bool take(const Tensor& tensor) { return take(bytes_of(tensor)); }

 private:
  static uint64_t bytes_of(const Tensor& tensor) {
    constexpr uint64_t kOfContainers = 192;
    return kOfContainers + tensor.shape.size() * sizeof(uint64_t) + tensor.pieces.size() * sizeof(Piece);
  }

  uint64_t left_ = kMost;
};

}  // namespace ckptfs::meta::formats

// Types of a tensor's elements, by the names that safetensors and torch give them. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ckptfs::meta::formats {

// The index keeps the numbers (meta/index/codec.cc), so a new one comes last.
enum class Dtype : uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  int64,
  int32,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
  uint8,
  boolean,
  complex64,
};
inline constexpr Dtype kLastDtype = Dtype::complex64;

// Bytes of an element.
unsigned size_of(Dtype dtype);
// "F32", as in a safetensors header
std::string_view safetensors_name(Dtype dtype);
std::optional<Dtype> dtype_of_safetensors(std::string_view name);
// "float32", as in torch.float32
std::string_view torch_name(Dtype dtype);
// By "torch.float32"
std::optional<Dtype> dtype_of_torch(std::string_view name);
// "FloatStorage", as torch names a storage in a pickle
std::optional<Dtype> dtype_of_storage(std::string_view name);

}  // namespace ckptfs::meta::formats

#include "meta/formats/dtype.h"

#include <algorithm>
#include <array>

namespace ckptfs::meta::formats {
namespace {

struct Names {
  Dtype dtype;
  unsigned size;
  std::string_view safetensors;
  std::string_view torch;
  std::string_view storage;  // empty: torch has no such class
};

// In the order of Dtype.
constexpr std::array kNames{
    Names{Dtype::float64, 8, "F64", "float64", "DoubleStorage"},
    Names{Dtype::float32, 4, "F32", "float32", "FloatStorage"},
    Names{Dtype::float16, 2, "F16", "float16", "HalfStorage"},
    Names{Dtype::bfloat16, 2, "BF16", "bfloat16", "BFloat16Storage"},
    Names{Dtype::float8_e4m3fn, 1, "F8_E4M3", "float8_e4m3fn", ""},
    Names{Dtype::float8_e5m2, 1, "F8_E5M2", "float8_e5m2", ""},
    Names{Dtype::int64, 8, "I64", "int64", "LongStorage"},
    Names{Dtype::int32, 4, "I32", "int32", "IntStorage"},
    Names{Dtype::int16, 2, "I16", "int16", "ShortStorage"},
    Names{Dtype::int8, 1, "I8", "int8", "CharStorage"},
    Names{Dtype::uint64, 8, "U64", "uint64", ""},
    Names{Dtype::uint32, 4, "U32", "uint32", ""},
    Names{Dtype::uint16, 2, "U16", "uint16", ""},
    Names{Dtype::uint8, 1, "U8", "uint8", "ByteStorage"},
    Names{Dtype::boolean, 1, "BOOL", "bool", "BoolStorage"},
    Names{Dtype::complex64, 8, "C64", "complex64", "ComplexFloatStorage"},
};

const Names& names_of(Dtype dtype) { return kNames.at(static_cast<size_t>(dtype)); }

std::optional<Dtype> find(std::string_view Names::*kind, std::string_view name) {
  if (name.empty()) return std::nullopt;
  const auto* const found = std::ranges::find(kNames, name, kind);
  return found == kNames.end() ? std::nullopt : std::optional(found->dtype);
}

}  // namespace

unsigned size_of(Dtype dtype) { return names_of(dtype).size; }
std::string_view safetensors_name(Dtype dtype) { return names_of(dtype).safetensors; }
std::string_view torch_name(Dtype dtype) { return names_of(dtype).torch; }
std::optional<Dtype> dtype_of_safetensors(std::string_view name) { return find(&Names::safetensors, name); }
std::optional<Dtype> dtype_of_torch(std::string_view name) {
  constexpr std::string_view module = "torch.";
  return name.starts_with(module) ? find(&Names::torch, name.substr(module.size())) : std::nullopt;
}
std::optional<Dtype> dtype_of_storage(std::string_view name) { return find(&Names::storage, name); }

}  // namespace ckptfs::meta::formats

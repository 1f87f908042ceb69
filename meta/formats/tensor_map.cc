#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

std::optional<uint64_t> elements_of(const Shape& shape) {
  constexpr uint64_t most = uint64_t{1} << 60;
  uint64_t elements = 1;
  for (const uint64_t length : shape) {
    if (length == 0) return 0;
  }
  for (const uint64_t length : shape) {
    if (length > most / elements) return std::nullopt;
    elements *= length;
  }
  return elements;
}

}  // namespace ckptfs::meta::formats

#include "meta/formats/shards.h"

#include <algorithm>

namespace ckptfs::meta::formats {

std::optional<Tensor> joined(const Member& member, const Flats& flats, uint64_t at) {
  Tensor tensor{flats.front()->dtype, member.shape, {}};
  const uint64_t part = divide_up(member.elements, flats.size());
  const uint64_t element = size_of(tensor.dtype);
  for (size_t rank = 0; rank < flats.size(); ++rank) {
    const uint64_t begin = std::min(member.elements, rank * part), end = std::min(member.elements, begin + part);
    const Flat& flat = *flats[rank];
    if (flat.dtype != tensor.dtype || at + (end - begin) > flat.elements()) return std::nullopt;
    if (begin < end) {
      tensor.pieces.push_back({flat.piece.file, flat.piece.offset + at * element, (end - begin) * element});
    }
  }
  return tensor;
}

std::optional<Tensor> cut_out(const Member& member, const Flats& flats, uint64_t at) {
  Tensor tensor{flats.front()->dtype, member.shape, {}};
  const uint64_t element = size_of(tensor.dtype);
  uint64_t left = member.elements;
  for (const auto& flat : flats) {
    if (flat->dtype != tensor.dtype) return std::nullopt;
    if (at >= flat->elements()) {
      at -= flat->elements();
      continue;
    }
    const uint64_t count = std::min(left, flat->elements() - at);
    if (count == 0) break;
    tensor.pieces.push_back({flat->piece.file, flat->piece.offset + at * element, count * element});
    left -= count;
    at = 0;
  }
  return left == 0 ? std::optional(std::move(tensor)) : std::nullopt;
}

}  // namespace ckptfs::meta::formats

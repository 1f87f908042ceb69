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

Ends ends_of(const Flats& flats) {
  constexpr uint64_t most = uint64_t{1} << 60;
  Ends ends;
  uint64_t end = 0;
  for (const auto& flat : flats) {
    if (flat->elements() > most - end) return {};
    ends.push_back(end += flat->elements());
  }
  return ends;
}

std::optional<Tensor> cut_out(const Member& member, const Flats& flats, const Ends& ends, uint64_t at) {
  Tensor tensor{flats.front()->dtype, member.shape, {}};
  const uint64_t element = size_of(tensor.dtype);
  uint64_t left = member.elements;
  if (ends.size() != flats.size()) return std::nullopt;
  auto rank = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
  for (; left > 0 && rank < flats.size(); ++rank) {
    const Flat& flat = *flats[rank];
    if (flat.dtype != tensor.dtype) return std::nullopt;
    const uint64_t begin = at - (ends[rank] - flat.elements()), count = std::min(left, ends[rank] - at);
    if (count > 0) tensor.pieces.push_back({flat.piece.file, flat.piece.offset + begin * element, count * element});
    left -= count;
    at += count;
  }
  return left == 0 ? std::optional(std::move(tensor)) : std::nullopt;
}

}  // namespace ckptfs::meta::formats

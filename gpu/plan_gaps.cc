#include "gpu/plan_gaps.h"

#include <functional>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace ckptfs::gpu {
namespace {

using meta::formats::Shape;

uint64_t product(const uint64_t* first, const uint64_t* last) {
  return std::accumulate(first, last, uint64_t{1}, std::multiplies<>());
}

// Returns the first range of a dimension in which the boxes do not fill all further dimensions.
std::pair<uint64_t, uint64_t> first_gap(const std::vector<const uint64_t*>& boxes, const Shape& shape,
                                        size_t dimension) {
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> edges;  // elements that begin there and that end there
  edges[0];
  edges[shape[dimension]];
  for (const uint64_t* const box : boxes) {
    const uint64_t* const sizes = box + shape.size();
    const uint64_t elements = product(sizes + dimension + 1, sizes + shape.size());
    edges[box[dimension]].first += elements;
    edges[box[dimension] + sizes[dimension]].second += elements;
  }
  const uint64_t full = product(shape.data() + dimension + 1, shape.data() + shape.size());
  uint64_t filled = 0;
  for (auto edge = edges.begin();; ++edge) {
    filled += edge->second.first - edge->second.second;
    if (filled != full) return {edge->first, std::next(edge)->first};
  }
}

}  // namespace

std::string gap_of(std::span<const Cell> cells, const Shape& shape) {
  std::vector<const uint64_t*> boxes;
  for (const Cell& cell : cells) boxes.push_back(cell.box);
  std::string text = "[";
  for (size_t dimension = 0; dimension < shape.size(); ++dimension) {
    const auto [begin, end] = first_gap(boxes, shape, dimension);
    std::erase_if(boxes, [&, begin = begin](const uint64_t* box) {
      return box[dimension] > begin || box[dimension] + box[shape.size() + dimension] <= begin;
    });
    text += (dimension == 0 ? "" : ", ") + std::to_string(begin) + ":" + std::to_string(end);
  }
  return text + "]";
}

}  // namespace ckptfs::gpu

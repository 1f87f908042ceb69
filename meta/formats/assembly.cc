#include "meta/formats/assembly.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "meta/formats/box.h"

namespace ckptfs::meta::formats {
namespace {

constexpr uint64_t kMostStepsForEach = 64;                 // of check_tiling, for each box of a tensor
constexpr uint64_t kMostStepsAtLeast = uint64_t{1} << 20;  // if a tensor has few boxes

Error gap() { return Error(EBADMSG, "its pieces leave a gap"); }
Error overlap() { return Error(EBADMSG, "its pieces overlap"); }

// Checks that boxes tile a tensor, without a list of its elements or runs. It cuts the tensor into slabs along the
// outermost dimension, at each beginning and end of a box. In each slab the same boxes lie everywhere, and they have to
// tile it in the dimensions that are left. A mesh of boxes is looked at once for each dimension.
class Tiling {
 public:
  Tiling(const std::vector<PlacedBox>& boxes, const Shape& shape)
      : boxes_(boxes), shape_(shape), steps_(kMostStepsAtLeast + kMostStepsForEach * boxes.size()) {}

  Result<> check() {
    std::vector<size_t> all;
    for (size_t at = 0; at < boxes_.size(); ++at) {
      if (*elements_of(boxes_[at].box.sizes) != 0) all.push_back(at);
    }
    if (*elements_of(shape_) == 0) return success();
    return check(all, 0);
  }

 private:
  // Checks the dimensions from this one on. In those before it all these boxes are equally wide.
  Result<> check(const std::vector<size_t>& boxes, size_t dimension) {
    if (boxes.size() > steps_) return Error(ENOTSUP, "its pieces lie too irregularly");
    steps_ -= boxes.size();
    TRY(check_volume(boxes, dimension));
    if (boxes.size() == 1) return success();
    if (dimension == shape_.size()) return overlap();
    std::vector<size_t> by_begin = boxes, by_end = boxes;
    std::ranges::sort(by_begin, {}, [&](size_t at) { return begin(at, dimension); });
    std::ranges::sort(by_end, {}, [&](size_t at) { return end(at, dimension); });
    std::vector<size_t> inside;
    size_t begun = 0, ended = 0;
    for (uint64_t cut = 0; cut < shape_[dimension];) {
      const auto is_over = [&](size_t at) { return end(at, dimension) <= cut; };
      while (ended < by_end.size() && is_over(by_end[ended])) ++ended;
      std::erase_if(inside, is_over);
      while (begun < by_begin.size() && begin(by_begin[begun], dimension) == cut) inside.push_back(by_begin[begun++]);
      if (inside.empty()) return gap();
      TRY(check(inside, dimension + 1));
      cut = end(by_end[ended], dimension);
      if (begun < by_begin.size()) cut = std::min(cut, begin(by_begin[begun], dimension));
    }
    return success();
  }

  // Have the boxes as many elements as the tensor, in the dimensions from this one on?
  Result<> check_volume(const std::vector<size_t>& boxes, size_t dimension) const {
    uint64_t left = volume(shape_, dimension);
    for (const size_t at : boxes) {
      const uint64_t size = volume(boxes_[at].box.sizes, dimension);
      if (size > left) return overlap();
      left -= size;
    }
    return left == 0 ? Result<>(success()) : gap();
  }

  static uint64_t volume(const Shape& sizes, size_t dimension) {
    uint64_t elements = 1;
    for (size_t at = dimension; at < sizes.size(); ++at) elements *= sizes[at];
    return elements;
  }
  uint64_t begin(size_t at, size_t dimension) const { return boxes_[at].box.offsets[dimension]; }
  uint64_t end(size_t at, size_t dimension) const { return begin(at, dimension) + boxes_[at].box.sizes[dimension]; }

  const std::vector<PlacedBox>& boxes_;
  const Shape& shape_;
  uint64_t steps_ = 0;
};

// Returns the number of runs of all boxes; of more than `most`, any number above that.
uint64_t runs_of(const std::vector<PlacedBox>& boxes, const Shape& shape, uint64_t most) {
  uint64_t runs = 0;
  for (const PlacedBox& placed : boxes) {
    if (runs <= most) runs += BoxRuns(placed.box, shape).count();
  }
  return runs;
}

}  // namespace

Result<> check_tiling(const std::vector<PlacedBox>& boxes, const Shape& shape) { return Tiling(boxes, shape).check(); }

Result<Tensor> assembled(Dtype dtype, const Shape& shape, std::vector<PlacedBox> boxes, MapBudget& budget) {
  const uint64_t runs = runs_of(boxes, shape, std::max<uint64_t>(budget.options().runs, boxes.size()));
  if (budget.options().boxes && runs > boxes.size()) {  // else pieces are no more than the boxes
    TRY(check_tiling(boxes, shape));
    return Tensor{dtype, shape, {}, std::move(boxes)};
  }
  if (!budget.take_runs(runs)) return Error(ENOTSUP, kTooManyRuns);
  std::vector<PlacedRun> placed;
  placed.reserve(runs);
  for (const PlacedBox& one : boxes) add_runs(one.box, shape, size_of(dtype), one.piece, placed);
  TRY_ASSIGN(auto pieces, join_runs(std::move(placed), *elements_of(shape), size_of(dtype)));
  return Tensor{dtype, shape, std::move(pieces), {}};
}

Result<std::vector<Tensor>> rows_of(const Tensor& tensor, MapBudget& budget) {
  std::vector<Tensor> rows;
  for (uint64_t row = 0; row < tensor.shape.front(); ++row) {
    rows.push_back({tensor.dtype, {tensor.shape.begin() + 1, tensor.shape.end()}, {}});
    if (!budget.take(rows.back())) return Error(ENOTSUP, kTooManyTensors);
  }
  const uint64_t size = rows.empty() ? 0 : *elements_of(rows.front().shape) * size_of(tensor.dtype);
  uint64_t at = 0;  // bytes of the pieces before
  for (const Piece& piece : tensor.pieces) {
    for (uint64_t done = 0, part = 0; size > 0 && done < piece.size; done += part, at += part) {
      part = std::min(piece.size - done, size - at % size);
      rows[at / size].pieces.push_back({piece.file, piece.offset + done, part});
      if (!budget.take(sizeof(Piece))) return Error(ENOTSUP, kTooManyTensors);
    }
  }
  for (const auto& [box, piece] : tensor.boxes) {
    const Box rest{{box.offsets.begin() + 1, box.offsets.end()}, {box.sizes.begin() + 1, box.sizes.end()}};
    const uint64_t bytes = box.sizes.front() == 0 ? 0 : piece.size / box.sizes.front();
    for (uint64_t row = 0; row < box.sizes.front(); ++row) {
      PlacedBox placed{rest, {piece.file, piece.offset + row * bytes, bytes}};
      if (!budget.take(placed)) return Error(ENOTSUP, kTooManyTensors);
      rows[box.offsets.front() + row].boxes.push_back(std::move(placed));
    }
  }
  return rows;
}

}  // namespace ckptfs::meta::formats

#include "meta/formats/assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "meta/formats/box.h"

namespace ckptfs::meta::formats {
namespace {

using testing::HasSubstr;

constexpr uint64_t kElement = 2;

PlacedBox placed(Box box, uint32_t file = 0) {
  const uint64_t size = *elements_of(box.sizes) * kElement;
  return {std::move(box), {file, 1000, size}};
}

// Cuts a box at random, at most `depth` times over.
void cut(const Box& box, int depth, std::mt19937_64& random, std::vector<PlacedBox>& boxes) {
  const size_t dimension = random() % box.sizes.size();
  if (depth == 0 || box.sizes[dimension] < 2) return boxes.push_back(placed(box, static_cast<uint32_t>(boxes.size())));
  Box first = box, second = box;
  first.sizes[dimension] = 1 + random() % (box.sizes[dimension] - 1);
  second.offsets[dimension] += first.sizes[dimension];
  second.sizes[dimension] -= first.sizes[dimension];
  cut(first, depth - 1, random, boxes);
  cut(second, depth - 1, random, boxes);
}

// The check without runs must tell what a list of all runs tells.
TEST(Assembly, TilingsAreToldFromWhatIsNone) {
  std::mt19937_64 random(28);
  size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape shape{1 + random() % 6, 1 + random() % 6, 1 + random() % 6};
    std::vector<PlacedBox> boxes;
    cut(whole_box(shape), 4, random, boxes);
    std::shuffle(boxes.begin(), boxes.end(), random);
    ASSERT_TRUE(check_tiling(boxes, shape)) << "round " << round;
    // Move or resize one, or leave it out.
    PlacedBox& one = boxes[random() % boxes.size()];
    const size_t dimension = random() % shape.size();
    if (random() % 3 == 0) {
      std::swap(one, boxes.back());
      boxes.pop_back();
    } else {
      one.box.offsets[dimension] = random() % shape[dimension];
      one.box.sizes[dimension] = random() % (shape[dimension] - one.box.offsets[dimension] + 1);
      one = placed(one.box);
    }
    std::vector<PlacedRun> runs;
    for (const PlacedBox& of : boxes) add_runs(of.box, shape, kElement, of.piece, runs);
    const bool tiles = join_runs(runs, *elements_of(shape), kElement).has_value();
    ASSERT_EQ(check_tiling(boxes, shape).has_value(), tiles) << "round " << round;
    refused += tiles ? 0 : 1;
  }
  EXPECT_GT(refused, 2000U);
}

TEST(Assembly, AMeshOfManyRanksIsNotCutIntoRuns) {
  const Shape shape{8192, 8192};
  std::vector<PlacedBox> boxes;
  for (uint64_t row = 0; row < 128; ++row) {
    for (uint64_t column = 0; column < 8; ++column) {
      boxes.push_back(placed({{row * 64, column * 1024}, {64, 1024}}, static_cast<uint32_t>(boxes.size())));
    }
  }
  MapBudget few(MapOptions{.runs = 5000, .boxes = true});
  const auto kept = assembled(Dtype::bfloat16, shape, boxes, few);
  ASSERT_TRUE(kept) << kept.error().message();
  EXPECT_EQ(kept.value().boxes.size(), 1024U);
  EXPECT_TRUE(kept.value().pieces.empty());
  MapBudget refused(MapOptions{.runs = 5000});
  const auto cut = assembled(Dtype::bfloat16, shape, boxes, refused);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().errno_value(), ENOTSUP);
  MapBudget daemons;
  const auto pieces = assembled(Dtype::bfloat16, shape, boxes, daemons);
  ASSERT_TRUE(pieces);
  EXPECT_EQ(pieces.value().pieces.size(), 65536U);
  boxes.pop_back();
  MapBudget again(MapOptions{.boxes = true});
  EXPECT_THAT(assembled(Dtype::bfloat16, shape, boxes, again).error().message(), HasSubstr("gap"));
}

TEST(Assembly, RowsBecomePieces) {
  MapBudget budget(MapOptions{.boxes = true});
  const auto tensor =
      assembled(Dtype::bfloat16, {4, 6}, {placed({{2, 0}, {2, 6}}, 1), placed({{0, 0}, {2, 6}})}, budget);
  ASSERT_TRUE(tensor) << tensor.error().message();
  EXPECT_TRUE(tensor.value().boxes.empty());
  ASSERT_EQ(tensor.value().pieces.size(), 2U);
  EXPECT_EQ(tensor.value().pieces[0].file, 0U);
}

TEST(Assembly, WithoutElementsThereIsNothingToCover) {
  MapBudget budget;
  const auto none = assembled(Dtype::bfloat16, {0, 6}, {}, budget);
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_TRUE(none.value().pieces.empty());
  EXPECT_FALSE(assembled(Dtype::bfloat16, {}, {}, budget)) << "a scalar has one element";
}

// Long columns and many short boxes in one of them: a check that is not bounded would compare each with each.
TEST(Assembly, AnIrregularTilingTakesBoundedTime) {
  constexpr uint64_t kColumns = 2000;
  const Shape shape{kColumns, kColumns + 1};
  std::vector<PlacedBox> boxes;
  for (uint64_t column = 0; column < kColumns; ++column) boxes.push_back(placed({{0, column}, {kColumns, 1}}));
  for (uint64_t row = 0; row < kColumns; ++row) boxes.push_back(placed({{row, kColumns}, {1, 1}}));
  const auto checked = check_tiling(boxes, shape);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().errno_value(), ENOTSUP);
}

}  // namespace
}  // namespace ckptfs::meta::formats

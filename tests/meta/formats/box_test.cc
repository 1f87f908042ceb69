#include "meta/formats/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace ckptfs::meta::formats {
namespace {

using testing::ElementsAre;

// The numbers, in the tensor, of a box's elements in the box's own order.
std::vector<uint64_t> elements_in(const Box& box, const Shape& shape) {
  std::vector<uint64_t> numbers;
  for (uint64_t at = 0; at < *elements_of(box.sizes); ++at) {
    uint64_t number = 0, left = at, step = 1;
    for (size_t dimension = shape.size(); dimension > 0; --dimension) {
      number += (box.offsets[dimension - 1] + left % box.sizes[dimension - 1]) * step;
      left /= box.sizes[dimension - 1];
      step *= shape[dimension - 1];
    }
    numbers.push_back(number);
  }
  return numbers;
}

struct Case {
  Shape shape;
  Box box;
};

class RandomBoxes {
 public:
  uint64_t below(uint64_t most) { return random_() % most; }
  Case next() {
    Case made;
    for (uint64_t dimension = below(5); dimension > 0; --dimension) {
      const uint64_t length = 1 + below(5), offset = below(length);
      made.shape.push_back(length);
      made.box.offsets.push_back(offset);
      made.box.sizes.push_back(below(3) == 0 ? length - offset : 1 + below(length - offset));
    }
    return made;
  }

 private:
  std::mt19937_64 random_{28};
};

TEST(Box, RangesAreCutIntoBoxes) {
  const Box box = whole_box({4, 3, 5});
  EXPECT_TRUE(boxes_of_range(box, 7, 7).empty());
  EXPECT_THAT(boxes_of_range(box, 0, 60), ElementsAre(box));
  EXPECT_THAT(boxes_of_range(box, 15, 45), ElementsAre(Box{{1, 0, 0}, {2, 3, 5}}));
  EXPECT_THAT(boxes_of_range(box, 7, 53),
              ElementsAre(Box{{0, 1, 2}, {1, 1, 3}}, Box{{0, 2, 0}, {1, 1, 5}}, Box{{1, 0, 0}, {2, 3, 5}},
                          Box{{3, 0, 0}, {1, 1, 5}}, Box{{3, 1, 0}, {1, 1, 3}}));
}

TEST(Box, AScalarIsOneElement) {
  EXPECT_THAT(boxes_of_range(Box{}, 0, 1), ElementsAre(Box{}));
  const BoxRuns runs(Box{}, {});
  EXPECT_EQ(runs.count(), 1U);
  EXPECT_EQ(runs.length(), 1U);
}

// Calls `elements_of(shape, box, begin, end)` for random ranges of random boxes: it must return their elements, in
// order.
template <class ElementsOf>
void check_ranges(const ElementsOf& elements_of) {
  RandomBoxes random;
  for (int round = 0; round < 2000; ++round) {
    const auto [shape, box] = random.next();
    const auto all = elements_in(box, shape);
    const uint64_t begin = random.below(all.size() + 1), end = begin + random.below(all.size() - begin + 1);
    const std::vector<uint64_t> wanted(all.begin() + begin, all.begin() + end);
    ASSERT_EQ(elements_of(shape, box, begin, end), wanted) << "round " << round;
  }
}

TEST(Box, EveryElementOfARangeIsInOneOfItsBoxesInOrder) {
  check_ranges([](const Shape& shape, const Box& box, uint64_t begin, uint64_t end) {
    std::vector<uint64_t> found;
    const auto boxes = boxes_of_range(box, begin, end);
    for (const Box& one : boxes) {
      EXPECT_TRUE(lies_within(one, shape));
      std::ranges::copy(elements_in(one, shape), std::back_inserter(found));
    }
    EXPECT_LE(boxes.size() + 1, std::max<size_t>(2 * shape.size(), 2));
    return found;
  });
}

TEST(Box, RunsAreTheElementsInOrder) {
  check_ranges([](const Shape& shape, const Box& box, uint64_t begin, uint64_t end) {
    std::vector<uint64_t> found;
    BoxRuns(box, shape).for_each(begin, end, [&](uint64_t first, uint64_t at, uint64_t count) {
      EXPECT_EQ(at, begin + found.size());
      for (uint64_t number = 0; number < count; ++number) found.push_back(first + number);
    });
    return found;
  });
}

TEST(Box, RunsAreAsLongAsTheyCanBe) {
  EXPECT_EQ(BoxRuns({{2, 0}, {3, 6}}, {8, 6}).count(), 1U) << "rows";
  EXPECT_EQ(BoxRuns({{0, 2}, {8, 3}}, {8, 6}).count(), 8U) << "columns";
  EXPECT_EQ(BoxRuns({{0, 0, 0}, {8, 3, 6}}, {8, 6, 6}).length(), 18U);
  EXPECT_EQ(BoxRuns({{0, 0}, {0, 6}}, {8, 6}).count(), 0U) << "empty";
}

TEST(Box, WhatLiesOutside) {
  EXPECT_TRUE(lies_within({{8, 0}, {0, 6}}, {8, 6}));
  EXPECT_FALSE(lies_within({{8, 0}, {1, 6}}, {8, 6}));
  EXPECT_FALSE(lies_within({{1}, {1}}, {8, 6}));
  EXPECT_FALSE(lies_within({{UINT64_MAX, 0}, {2, 1}}, {8, 6})) << "the sum wraps around";
}

TEST(Box, PiecesJoinToTheWhole) {
  const Shape shape{4, 6};
  std::vector<PlacedRun> runs;
  add_runs({{0, 0}, {4, 2}}, shape, 2, {0, 100, 16}, runs);
  add_runs({{0, 2}, {2, 4}}, shape, 2, {1, 0, 16}, runs);
  auto lacking = join_runs(runs, 24, 2);
  ASSERT_FALSE(lacking);
  EXPECT_EQ(lacking.error().message(), "its pieces leave a gap at element 14");
  add_runs({{2, 2}, {2, 4}}, shape, 2, {1, 16, 16}, runs);
  const auto pieces = join_runs(runs, 24, 2);
  ASSERT_TRUE(pieces) << pieces.error().message();
  ASSERT_EQ(pieces.value().size(), 8U);
  EXPECT_EQ(pieces.value()[2].offset, 104U);
  EXPECT_EQ(pieces.value()[3].offset, 8U);
  EXPECT_EQ(pieces.value()[3].file, 1U);
  add_runs({{3, 5}, {1, 1}}, shape, 2, {2, 0, 2}, runs);
  auto twice = join_runs(runs, 24, 2);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().message(), "its pieces overlap at element 23");
}

}  // namespace
}  // namespace ckptfs::meta::formats

#include "gpu/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <random>

#include "gpu/step_save.h"
#include "meta/formats/box.h"
#include "tests/gpu/staging_test.h"

namespace ckptfs::gpu {
namespace {

using meta::formats::Box;
using meta::formats::Dtype;
using meta::formats::Shape;

// The floats of a box of the tensor whose every element is its own number.
std::vector<float> numbers_in(const Box& box, const Shape& shape) {
  std::vector<float> numbers;
  const meta::formats::BoxRuns runs(box, shape);
  runs.for_each(0, runs.count() * runs.length(), [&](uint64_t begin, uint64_t, uint64_t count) {
    for (uint64_t at = 0; at < count; ++at) numbers.push_back(static_cast<float>(begin + at));
  });
  return numbers;
}

// How ranks share a tensor.
using Layout = std::vector<std::vector<Box>>;  // for each rank the boxes that it holds

class CheckpointTest : public testing::StagingTest {
 protected:
  // Saves a tensor that each rank holds some boxes of.
  void save(const std::string& tag, const Shape& shape, const Layout& layout) {
    for (unsigned rank = 0; rank < layout.size(); ++rank) {
      auto save = StepSave::begin(staging_, {path(""), tag, "a1", rank, static_cast<unsigned>(layout.size())});
      ASSERT_OK(save);
      std::deque<std::vector<float>> memory;
      std::vector<SavedTensor> tensors;
      for (const Box& box : layout[rank]) {
        memory.push_back(numbers_in(box, shape));
        const std::string name = tensors.empty() ? "w" : "w#" + std::to_string(tensors.size());
        tensors.push_back({name, Dtype::float32, box.sizes, reinterpret_cast<const std::byte*>(memory.back().data()),
                           memory.back().size() * sizeof(float), meta::formats::SavedPiece{"w", shape, box.offsets}});
      }
      ASSERT_OK(save.value()->add_tensors("rank" + std::to_string(rank) + ".safetensors", tensors, nullptr));
      ASSERT_OK(save.value()->wait_durable());
      ASSERT_OK(save.value()->commit(false));
    }
  }

  std::unique_ptr<Checkpoint> open(const std::string& tag) {
    auto opened = Checkpoint::open(path(tag));
    EXPECT_OK(opened);
    EXPECT_TRUE(opened.value()->problems().empty());
    EXPECT_EQ(opened.value()->items().size(), 1U);
    return std::move(opened).value();
  }
};

Layout by_rows(const Shape& shape, uint64_t ranks) {
  Layout layout;
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const uint64_t begin = shape[0] * rank / ranks, end = shape[0] * (rank + 1) / ranks;
    layout.push_back({{{begin, 0}, {end - begin, shape[1]}}});
  }
  return layout;
}

Layout by_columns(const Shape& shape, uint64_t ranks) {
  Layout layout;
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const uint64_t begin = shape[1] * rank / ranks, end = shape[1] * (rank + 1) / ranks;
    layout.push_back({{{0, begin}, {shape[0], end - begin}}});
  }
  return layout;
}

// Equal parts of the flat tensor, as of ZeRO's partitions.
Layout flat(const Shape& shape, uint64_t ranks) {
  Layout layout;
  const uint64_t elements = shape[0] * shape[1];
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    layout.push_back(meta::formats::boxes_of_range(meta::formats::whole_box(shape), elements * rank / ranks,
                                                   elements * (rank + 1) / ranks));
  }
  return layout;
}

TEST_F(CheckpointTest, AnyLayoutIsLoadedInAnyOther) {
  const Shape shape{37, 53};
  int step = 0;
  for (const uint64_t ranks : {1, 2, 3, 8}) {
    for (const auto layout : {by_rows, by_columns, flat}) {
      const std::string tag = "step_" + std::to_string(++step);
      save(tag, shape, layout(shape, ranks));
      const auto checkpoint = open(tag);
      for (const auto other : {by_rows, by_columns, flat}) {
        for (const auto& boxes : other(shape, 5)) {
          std::deque<std::vector<float>> memory;
          std::vector<BoxRequest> requests;
          for (const Box& box : boxes) {
            const uint64_t elements = *meta::formats::elements_of(box.sizes);
            auto& target = memory.emplace_back(elements, -1.0F);
            requests.push_back({0, box, 0, elements, reinterpret_cast<std::byte*>(target.data())});
          }
          const auto report = checkpoint->load_boxes(*staging_, requests, nullptr);
          ASSERT_OK(report);
          uint64_t bytes = 0;
          for (size_t at = 0; at < boxes.size(); ++at) {
            ASSERT_EQ(memory[at], numbers_in(boxes[at], shape)) << tag;
            bytes += memory[at].size() * sizeof(float);
          }
          EXPECT_EQ(report.value().moved.bytes, bytes) << "each byte once";
        }
      }
    }
  }
}

TEST_F(CheckpointTest, AFileThatIsReplacedAfterItsHeaderWasReadIsAnError) {
  const Shape shape{37, 53};
  save("step_1", shape, by_rows(shape, 1));
  save("step_2", {74, 53}, by_rows({74, 53}, 1));
  for (const bool in_place : {true, false}) {
    std::filesystem::copy(path("step_1"), path("step_3"));
    const std::string file = path("step_3/rank0.safetensors"), other = path("step_2/rank0.safetensors");
    const auto checkpoint = open("step_3");
    if (!in_place) std::filesystem::remove(file);
    std::filesystem::copy_file(other, file, std::filesystem::copy_options::overwrite_existing);
    std::vector<float> memory(shape[0] * shape[1]);
    const Request all{0, 0, memory.size() * sizeof(float), reinterpret_cast<std::byte*>(memory.data())};
    EXPECT_ERRNO(ESTALE, checkpoint->load(*staging_, {all}, nullptr));
    std::filesystem::remove_all(path("step_3"));
  }
}

TEST_F(CheckpointTest, RangesOfBoxesAndBytesOfATensorThatLiesInColumns) {
  const Shape shape{20, 12};
  save("step_1", shape, by_columns(shape, 4));
  const auto checkpoint = open("step_1");
  EXPECT_FALSE(checkpoint->items()[0].boxes.empty());
  std::mt19937_64 random(3);
  const Box box{{2, 1}, {15, 9}};
  const auto inside = numbers_in(box, shape);
  const auto whole = numbers_in(meta::formats::whole_box(shape), shape);
  for (int round = 0; round < 100; ++round) {
    const uint64_t begin = random() % inside.size(), end = begin + random() % (inside.size() - begin + 1);
    std::vector<float> target(end - begin);
    ASSERT_OK(checkpoint->load_boxes(*staging_, {{0, box, begin, end, reinterpret_cast<std::byte*>(target.data())}},
                                     nullptr));
    ASSERT_EQ(target, std::vector<float>(inside.begin() + begin, inside.begin() + end));
    const uint64_t offset = random() % (whole.size() * sizeof(float)), size = random() % 200;
    const uint64_t bytes = std::min(size, whole.size() * sizeof(float) - offset);
    std::vector<std::byte> some(bytes);
    ASSERT_OK(checkpoint->load(*staging_, {{0, offset, bytes, some.data()}}, nullptr));
    ASSERT_EQ(std::memcmp(some.data(), reinterpret_cast<const std::byte*>(whole.data()) + offset, bytes), 0);
  }
}

// A box that is loaded as it was saved is one range of the file, whatever its place in the tensor.
TEST_F(CheckpointTest, WhatWasSavedByColumnsIsReadInOneGo) {
  const Shape shape{64, 4096};
  save("step_1", shape, by_columns(shape, 2));
  const auto checkpoint = open("step_1");
  const Box box = by_columns(shape, 2)[1][0];
  std::vector<float> target(shape[0] * shape[1] / 2);
  const auto report = checkpoint->load_boxes(
      *staging_, {{0, box, 0, target.size(), reinterpret_cast<std::byte*>(target.data())}}, nullptr);
  ASSERT_OK(report);
  EXPECT_EQ(target, numbers_in(box, shape));
  EXPECT_LE(report.value().moved.read, target.size() * sizeof(float) + 4096);
}

TEST_F(CheckpointTest, WhatLiesOutsideIsRefused) {
  const Shape shape{4, 6};
  save("step_1", shape, by_columns(shape, 2));
  const auto checkpoint = open("step_1");
  const BoxRequest wrong[] = {{1, {{0, 0}, {1, 1}}, 0, 1},
                              {0, {{0, 0}, {5, 1}}, 0, 1},
                              {0, {{0}, {1}}, 0, 1},
                              {0, {{0, 0}, {2, 2}}, 0, 5},
                              {0, {{0, 0}, {2, 2}}, 3, 2}};
  for (const BoxRequest& request : wrong) {
    EXPECT_ERRNO(EINVAL, checkpoint->load_boxes(*staging_, {request}, nullptr));
  }
}

}  // namespace
}  // namespace ckptfs::gpu

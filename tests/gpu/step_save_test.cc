#include "gpu/step_save.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <deque>

#include "tests/gpu/staging_test.h"

namespace ckptfs::gpu {
namespace {

using meta::formats::Dtype;
using meta::formats::SavedPiece;
using meta::formats::Shape;

class StepSaveTest : public testing::StagingTest {
 protected:
  std::unique_ptr<StepSave> begin(unsigned rank, unsigned ranks) {
    auto save = StepSave::begin(staging_, {path(""), "step_1", "a1", rank, ranks});
    EXPECT_OK(save);
    return std::move(save).value();
  }

  // A tensor of floats, each of which is the number that `number` makes of its index.
  template <class Number>
  SavedTensor tensor(const std::string& name, const Shape& shape, std::optional<SavedPiece> piece,
                     const Number& number) {
    auto& memory = memory_.emplace_back(*meta::formats::elements_of(shape));
    for (size_t at = 0; at < memory.size(); ++at) memory[at] = number(at);
    return {
        name, Dtype::float32, shape, reinterpret_cast<const std::byte*>(memory.data()), memory.size() * sizeof(float),
        piece};
  }

  std::string text_of(const std::string& name) const {
    const auto text = io::read_file(path("step_1/" + name));
    EXPECT_OK(text);
    return text.value();
  }

  std::deque<std::vector<float>> memory_;
};

TEST_F(StepSaveTest, TheHeaderTellsOfPieces) {
  const auto save = begin(0, 1);
  const auto index = [](size_t at) { return static_cast<float>(at); };
  ASSERT_OK(save->add_tensors(
      "rank00.safetensors",
      {tensor("w", {2, 3}, SavedPiece{"w", {4, 6}, {2, 3}}, index), tensor("whole", {2}, {}, index)}, nullptr));
  ASSERT_OK(save->wait_durable());
  ASSERT_OK(save->commit(false));
  const std::string text = text_of("rank00.safetensors");
  EXPECT_NE(text.find(R"("ckptfs.piece:w":"{\"of\":\"w\",\"shape\":[4,6],\"offsets\":[2,3]}")"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("ckptfs.piece:whole"), std::string::npos);
}

TEST_F(StepSaveTest, WhatIsNoPieceIsRefused) {
  const auto save = begin(0, 1);
  const auto none = [](size_t) { return 0.0F; };
  const SavedPiece wrong[] = {{"w", {4, 6}, {3, 3}},
                              {"w", {4}, {0}},
                              {"w", {4, 6}, {0}},
                              {"", {4, 6}, {0, 0}},
                              {"w", {4, 6}, {UINT64_MAX, 0}},
                              {"w", {uint64_t{1} << 40, uint64_t{1} << 40}, {0, 0}}};
  for (const SavedPiece& piece : wrong) {
    EXPECT_ERRNO(EINVAL, save->add_tensors("rank00.safetensors", {tensor("w", {2, 3}, piece, none)}, nullptr));
  }
}

// A step with such a name could not be loaded.
TEST_F(StepSaveTest, WhatIsNoNameIsRefused) {
  const auto save = begin(0, 1);
  const auto none = [](size_t) { return 0.0F; };
  for (const std::string name : {"__metadata__", "w\xFF", "w\xED\xB3\xBF", "w\n"}) {
    EXPECT_ERRNO(EINVAL, save->add_tensors("rank00.safetensors", {tensor(name, {2}, {}, none)}, nullptr)) << name;
  }
}

// Else the save would succeed, and the load would fail.
TEST_F(StepSaveTest, WhatCouldNotBeReadIsNotWritten) {
  const auto save = begin(0, 1);
  const auto none = [](size_t) { return 0.0F; };
  const std::string name(meta::formats::kLongestTensorName + 1, 'n');
  EXPECT_ERRNO(EFBIG, save->add_tensors("rank00.safetensors", {tensor(name, {1}, {}, none)}, nullptr));
  std::vector<SavedTensor> many(meta::formats::kMostTensors + 1, tensor("t", {}, {}, none));
  for (size_t at = 0; at < many.size(); ++at) many[at].name = std::to_string(at);
  EXPECT_ERRNO(EFBIG, save->add_tensors("rank00.safetensors", many, nullptr));
  many.pop_back();
  EXPECT_OK(save->add_tensors("rank00.safetensors", many, nullptr));
}

// A manifest says that the files of its rank are there. Here one of these cannot take its place.
TEST_F(StepSaveTest, InAFolderTheManifestComesLast) {
  const std::vector<std::byte> memory(4096);
  const auto save = [&](const char* attempt) {
    auto one = StepSave::begin(staging_, {path(""), "step_1", attempt, 0, 1});
    EXPECT_OK(one);
    EXPECT_OK(one.value()->add_file("file", memory.size(), {{memory.data(), memory.size(), 0}}, nullptr));
    EXPECT_OK(one.value()->wait_durable());
    return one.value()->commit(false);
  };
  ASSERT_OK(save("a1"));
  const std::string manifest = path("step_1/ckptfs.rank00.json");
  ASSERT_EQ(::access(manifest.c_str(), F_OK), 0);
  ASSERT_EQ(::unlink(path("step_1/file").c_str()), 0);
  ASSERT_EQ(::mkdir(path("step_1/file").c_str(), 0700), 0);
  EXPECT_FALSE(save("a2"));
  EXPECT_NE(::access(manifest.c_str(), F_OK), 0) << "the step looks complete";
}

TEST_F(StepSaveTest, TheManifestTellsHowLongItTook) {
  const auto save = begin(0, 1);
  EXPECT_ERRNO(EINVAL, save->note("No Stage", 1));
  EXPECT_ERRNO(EINVAL, save->note("plan", -1));
  EXPECT_ERRNO(EINVAL, save->note("plan", NAN));
  ASSERT_OK(save->note("plan", 0.25));
  ASSERT_OK(save->note("plan", 0.5));
  std::vector<std::byte> memory(20 * testing::kSlot);
  ASSERT_OK(save->add_file("file", memory.size(), {{memory.data(), memory.size(), 0}}, nullptr));
  ASSERT_OK(save->wait_durable());
  EXPECT_ERRNO(EINVAL, save->note("plan", 1)) << "it is written";
  ASSERT_OK(save->commit(false));
  const auto manifest = meta::formats::parse_manifest(text_of("ckptfs.rank00.json"));
  ASSERT_OK(manifest);
  ASSERT_TRUE(manifest.value().timing);
  const auto& timing = *manifest.value().timing;
  EXPECT_EQ(timing.stages.at("plan"), 0.75);
  EXPECT_FALSE(timing.host.empty());
  double measured = 0;
  for (const char* const stage : {"copy", "write", "sync"}) {
    EXPECT_GE(timing.stages.at(stage), 0) << stage;
    measured += timing.stages.at(stage);
  }
  EXPECT_GT(measured, 0);
  EXPECT_LE(measured, timing.durable - timing.begun + 0.5) << "they follow one another";
}

}  // namespace
}  // namespace ckptfs::gpu

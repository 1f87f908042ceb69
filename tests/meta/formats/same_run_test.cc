#include "meta/formats/same_run.h"

#include <gtest/gtest.h>

#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

constexpr const char* kFirst = "offloaded_tensors/rank00/0_1.tensor.swp";
constexpr const char* kSecond = "offloaded_tensors/rank00/2_2.tensor.swp";

// Two groups and a buffer that is in no swap file. `named` has a name for the first group only.
struct SameRun : testing::Test {
  SameRun() {
    nameless.add(kFirst, std::string(100, 'a'));
    nameless.add(kSecond, std::string(50, 'b'));
    nameless_map.undivided = {{0, 1, 0, "fp32", 0}, {2, 2, 0, "fp32", 1}};
    named.add("model_states.pt", std::string(10, 'm'));
    named.add(kSecond, std::string(50, 'd'));
    named.add(kFirst, std::string(100, 'c'));
    Parameter weight{"weight", Parameter::Kind::trained, 0, {}};
    weight.states["fp32"] = {Dtype::float32, {5}, {{2, 8, 20}}};
    weight.states["exp_avg"] = {Dtype::float32, {2}, {{0, 0, 8}}};
    Parameter buffer{"buffer", Parameter::Kind::buffer, std::nullopt, {}};
    buffer.states[kParam] = {Dtype::uint8, {10}, {{0, 0, 10}}};
    named_map.parameters = {weight, buffer};
    named_map.tied = {{"second name", "weight"}};
  }
  StepInMemory nameless, named;
  TensorMap nameless_map, named_map;
};

TEST_F(SameRun, StatesAreTheStepsOwn) {
  const TensorMap map = named_like(nameless_map, nameless, named_map, named);
  ASSERT_EQ(map.parameters.size(), 2U);
  ASSERT_EQ(map.parameters[0].states.size(), 1U) << "what lies outside the swap files is another moment's";
  const Piece& piece = map.parameters[0].states.at("fp32").pieces.at(0);
  EXPECT_EQ(piece.file, 0U);
  EXPECT_EQ(piece.offset, 8U);
  EXPECT_EQ(map.parameters[0].ds_id, 0U);
  EXPECT_TRUE(map.parameters[1].states.empty());
  ASSERT_EQ(map.undivided.size(), 1U);
  EXPECT_EQ(map.undivided[0].file, 1U);
  EXPECT_EQ(map.tied.size(), 1U);
}

TEST_F(SameRun, OtherSwapFilesAreNoneOfThisStep) {
  StepInMemory longer;
  longer.add(kFirst, std::string(101, 'a'));
  longer.add(kSecond, std::string(50, 'b'));
  EXPECT_TRUE(named_like(nameless_map, longer, named_map, named).parameters.empty());
  StepInMemory fewer;
  fewer.add(kFirst, std::string(100, 'a'));
  EXPECT_TRUE(named_like(nameless_map, fewer, named_map, named).parameters.empty());
}

TEST_F(SameRun, NamesOfWhatLiesElsewhereAreNone) {
  named_map.parameters.erase(named_map.parameters.begin());
  EXPECT_TRUE(named_like(nameless_map, nameless, named_map, named).parameters.empty());
}

TEST_F(SameRun, ATrainersStepHasThemOneFolderDeeper) {
  StepInMemory trainers;
  for (const StepFiles::File& file : named.list())
    trainers.add("global_step7/" + file.path, std::string(file.size, 't'));
  EXPECT_EQ(named_like(nameless_map, nameless, named_map, trainers).parameters.size(), 2U);
  trainers.add(std::string("global_step6/") + kFirst, std::string(100, 'o'));
  EXPECT_TRUE(named_like(nameless_map, nameless, named_map, trainers).parameters.empty()) << "which of the two it is";
}

}  // namespace
}  // namespace ckptfs::meta::formats

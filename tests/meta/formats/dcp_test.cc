#include "meta/formats/dcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using testing::HasSubstr;

// What torch 2.15 wrote with two ranks (tests/fuzz/corpus/checkpoint; tests/fuzz/checkpoint_fuzzer.cc explains the
// layout): "rows" of 5 x 3 and its exp_avg are cut by rows, "columns" of 4 x 6 is cut by columns, and "dice" is in no
// state.
struct SavedByTwo {
  SavedByTwo() {
    const auto content = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/checkpoint/dcp");
    EXPECT_TRUE(content) << content.error().message();
    const std::string& bytes = content.value();
    const auto length = [&](size_t at) {
      return static_cast<uint8_t>(bytes[at]) | static_cast<size_t>(static_cast<uint8_t>(bytes[at + 1])) << 8;
    };
    metadata = bytes.substr(5, length(1));
    first = bytes.substr(5 + length(1), length(3));
    second = bytes.substr(5 + length(1) + length(3));
  }
  void put(StepInMemory& step, const std::string& folder) const {
    step.add(folder + "__0_0.distcp", first);
    step.add(folder + "__1_0.distcp", second);
    step.add(folder + ".metadata", metadata);
  }
  std::string metadata;
  std::string first;
  std::string second;
};

template <class T>
std::vector<T> elements(const StepFiles& step, const Tensor& tensor) {
  std::string bytes;
  for (const Piece& piece : tensor.pieces) {
    bytes += step.read(piece.file, 1 << 20).value().substr(piece.offset, piece.size);
  }
  std::vector<T> found(bytes.size() / sizeof(T));
  std::memcpy(found.data(), bytes.data(), bytes.size());
  return found;
}

std::vector<float> counted(float first, size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST(Dcp, PutsChunksTogether) {
  for (const char* folder : {"", "pytorch_model_fsdp_0/"}) {
    StepInMemory step;
    SavedByTwo().put(step, folder);
    const TensorMap map = read_dcp(step);
    EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
    ASSERT_EQ(map.parameters.size(), 3U);
    const Tensor& columns = find(map, "columns").states.at(kParam);
    EXPECT_EQ(columns.shape, (Shape{4, 6}));
    EXPECT_EQ(columns.pieces.size(), 8U) << "each row lies in both files";
    EXPECT_EQ(elements<float>(step, columns), counted(0, 24));
    const Parameter& rows = find(map, "rows");
    EXPECT_EQ(rows.states.at(kParam).dtype, Dtype::bfloat16);
    EXPECT_EQ(rows.states.at("exp_avg").pieces.size(), 2U);
    EXPECT_EQ(elements<float>(step, rows.states.at("exp_avg")), counted(15, 15));
    EXPECT_EQ(rows.kind, Parameter::Kind::trained);
    const Parameter& dice = find(map, "dice");
    EXPECT_EQ(dice.kind, Parameter::Kind::other);
    EXPECT_EQ(elements<uint8_t>(step, dice.states.at("value")), (std::vector<uint8_t>{0, 1, 2}));
  }
}

TEST(Dcp, TensorsUnderTheNamesThatTheyWereSavedBy) {
  StepInMemory step;
  SavedByTwo().put(step, "");
  const TensorMap map = read_dcp(step, {.boxes = true, .saved_names = true});
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  std::vector<std::string> names;
  for (const Parameter& parameter : map.parameters) {
    names.push_back(parameter.name);
    EXPECT_THAT(parameter.states, testing::ElementsAre(testing::Key(kParam)));
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("model.rows", "model.columns", "optim.state.rows.exp_avg", "dice"));
  const Tensor& columns = find(map, "model.columns").states.at(kParam);
  EXPECT_TRUE(columns.pieces.empty());
  ASSERT_EQ(columns.boxes.size(), 2U);
  EXPECT_EQ(columns.boxes[0].box.sizes, (Shape{4, 3}));
}

// accelerate writes a folder for each model.
TEST(Dcp, SeveralModelsAreKeptApart) {
  StepInMemory step;
  SavedByTwo().put(step, "pytorch_model_fsdp_0/");
  SavedByTwo().put(step, "pytorch_model_fsdp_1/");
  const TensorMap map = read_dcp(step);
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  for (const char* model : {"pytorch_model_fsdp_0/", "pytorch_model_fsdp_1/"}) {
    const Parameter& columns = find(map, std::string(model) + "columns");
    EXPECT_EQ(columns.kind, Parameter::Kind::trained);
    for (const Piece& piece : columns.states.at(kParam).pieces) {
      EXPECT_THAT(step.list()[piece.file].path, testing::StartsWith(model));
    }
    EXPECT_FALSE(find(map, std::string(model) + "rows").states.contains("exp_avg")) << "whose it is, nobody tells";
  }
}

TEST(Dcp, WhatLiesInAHiddenFolderIsNone) {
  StepInMemory step;
  SavedByTwo().put(step, ".cache/");
  EXPECT_TRUE(read_dcp(step).parameters.empty());
  EXPECT_EQ(check_dcp(step), ShareCheck());
}

TEST(Dcp, WhatIsMissingIsAProblem) {
  const SavedByTwo saved;
  StepInMemory without_first;
  without_first.add(".metadata", saved.metadata);
  without_first.add("__1_0.distcp", saved.second);
  const TensorMap map = read_dcp(without_first);
  ASSERT_FALSE(map.problems.empty());
  EXPECT_EQ(map.problems.front().file, ".metadata");
  EXPECT_THAT(map.problems.front().reason, HasSubstr("__0_0.distcp is not there"));
  EXPECT_EQ(find(map, "dice").states.size(), 1U) << "the rest shows";

  StepInMemory shorter;
  shorter.add(".metadata", saved.metadata);
  shorter.add("__0_0.distcp", saved.first);
  shorter.add("__1_0.distcp", saved.second.substr(0, 100));
  ASSERT_FALSE(read_dcp(shorter).problems.empty());
  EXPECT_THAT(read_dcp(shorter).problems.front().reason, HasSubstr("shorter than it should be"));
}

TEST(Dcp, EveryTruncationOfTheMetadataIsAProblem) {
  const SavedByTwo saved;
  for (size_t length = 0; length < saved.metadata.size(); length += 7) {
    StepInMemory step;
    step.add(".metadata", saved.metadata.substr(0, length));
    step.add("__0_0.distcp", saved.first);
    EXPECT_FALSE(read_dcp(step).problems.empty()) << length;
  }
}

TEST(Dcp, NoFolderIsNone) {
  StepInMemory step;
  step.add("a/b/.metadata", SavedByTwo().metadata);
  step.add("other.metadata", "");
  const TensorMap map = read_dcp(step);
  EXPECT_TRUE(map.parameters.empty());
  EXPECT_TRUE(map.problems.empty());
}

// Two stacked layers and one output, and their optimizer: what torch 2.15 wrote with Megatron's names and no keys.
struct SavedByMegatron {
  explicit SavedByMegatron(const std::string& sample = "megatron") {
    const auto content = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/checkpoint/" + sample);
    EXPECT_TRUE(content) << content.error().message();
    const std::string& bytes = content.value();
    const size_t length = static_cast<uint8_t>(bytes[1]) | static_cast<size_t>(static_cast<uint8_t>(bytes[2])) << 8;
    const size_t next = static_cast<uint8_t>(bytes[3]) | static_cast<size_t>(static_cast<uint8_t>(bytes[4])) << 8;
    step.add(".metadata", bytes.substr(5, length));
    step.add("__0_0.distcp", bytes.substr(5 + length, next));
  }
  void finish() {
    step.add("common.pt", "PK");
    step.add("metadata.json", "{}");
  }
  StepInMemory step;
};

TEST(Dcp, MegatronsLayersHaveTheirOwnNames) {
  SavedByMegatron saved;
  saved.finish();
  const TensorMap map = read_dcp(saved.step);
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  ASSERT_EQ(map.parameters.size(), 5U) << "none of them is what the optimizer keeps";
  const Parameter& second = find(map, "decoder.layers.1.mlp.linear_fc2.weight");
  EXPECT_EQ(second.states.at("fp32").shape, (Shape{3, 2}));
  EXPECT_EQ(elements<float>(saved.step, second.states.at("fp32")), counted(6, 6));
  EXPECT_EQ(elements<float>(saved.step, second.states.at("exp_avg")), counted(106, 6));
  EXPECT_EQ(second.states.at(kParam).dtype, Dtype::bfloat16);
  EXPECT_EQ(find(map, "output_layer.weight").states.size(), 4U);
  ASSERT_EQ(map.tied.size(), 2U);
  EXPECT_EQ(map.tied.front().name, "decoder.layers.0.pre_mlp_layernorm.bias");
}

// Of several optimizers each has a number. One that was saved flat has no place for its elements.
TEST(Dcp, MegatronsOptimizersInAChainAreNoWeights) {
  SavedByMegatron saved("megatron_chained");
  saved.finish();
  const TensorMap map = read_dcp(saved.step);
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  ASSERT_EQ(map.parameters.size(), 4U);
  EXPECT_TRUE(find(map, "decoder.layers.1.mlp.linear_fc2.weight").states.contains("exp_avg"));
  EXPECT_EQ(find(map, "output_layer.weight").states.size(), 1U);
  EXPECT_EQ(find(map, "chained_1.optimizer.state.fp32_param.output_layer.weight").kind, Parameter::Kind::resume);
}

TEST(Dcp, MegatronNeedsWhatLiesBeside) {
  const SavedByMegatron saved;
  const TensorMap map = read_dcp(saved.step);
  ASSERT_EQ(map.problems.size(), 2U);
  EXPECT_EQ(map.problems.front().kind, Problem::Kind::missing);
  EXPECT_THAT(map.problems.front().reason, HasSubstr("common.pt"));
  EXPECT_EQ(check_dcp(saved.step).missing.size(), 2U);
}

TEST(Dcp, MegatronsStackedTensorsAreThereAsTheyWereSaved) {
  SavedByMegatron saved;
  saved.finish();
  const TensorMap map = read_dcp(saved.step, {.saved_names = true});
  EXPECT_EQ(find(map, "decoder.layers.mlp.linear_fc2.weight").states.at(kParam).shape, (Shape{2, 3, 2}));
}

}  // namespace
}  // namespace ckptfs::meta::formats

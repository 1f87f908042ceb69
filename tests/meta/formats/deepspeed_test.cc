#include "meta/formats/deepspeed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/fd.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using testing::HasSubstr;

// What DeepSpeed 0.19.8 wrote (tests/fuzz/corpus/deepspeed; tests/fuzz/deepspeed_fuzzer.cc explains the layout).
struct Sample {
  explicit Sample(const std::string& name) {
    const auto content = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/deepspeed/" + name);
    EXPECT_TRUE(content) << content.error().message();
    const std::string& bytes = content.value();
    const size_t length = static_cast<uint8_t>(bytes[1]) | static_cast<size_t>(static_cast<uint8_t>(bytes[2])) << 8;
    model = bytes.substr(3, length);
    optimizer = bytes.substr(3 + length);
  }
  std::string model;
  std::string optimizer;
};

constexpr const char* kModel = "zero_pp_rank_0_mp_rank_00_model_states.pt";
constexpr const char* kOptimizer = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";

// Replaces the first small number after `key` in a pickle.
void set_number(std::string& pickle, const std::string& key, char number) {
  const size_t at = pickle.find('K', pickle.find(key) + key.size());
  ASSERT_LT(at, pickle.size() - 1);
  pickle[at + 1] = number;
}

std::string reasons_of(const TensorMap& map) {
  std::string reasons;
  for (const Problem& problem : map.problems) reasons += problem.reason + "\n";
  return reasons;
}

TEST(DeepSpeed, StageThreeInMemory) {
  const Sample sample("stage_3");
  StepInMemory files;
  files.add(std::string("global_step1/") + kModel, sample.model);
  files.add(std::string("global_step1/") + kOptimizer, sample.optimizer);
  EXPECT_FALSE(is_deepspeed(files, ""));
  ASSERT_TRUE(is_deepspeed(files, "global_step1/"));
  const TensorMap map = read_deepspeed(files, "global_step1/");
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  const Parameter& embedding = find(map, "embedding.weight");
  EXPECT_EQ(embedding.ds_id, 0U);
  EXPECT_EQ(embedding.states.size(), 3U);
  const Tensor& moment = embedding.states.at("exp_avg_sq");
  EXPECT_EQ(moment.shape, (Shape{97, 3}));
  ASSERT_EQ(moment.pieces.size(), 1U);
  EXPECT_EQ(moment.pieces[0].file, 1U);
  EXPECT_EQ(moment.pieces[0].size, 97U * 3 * 4);
  EXPECT_EQ(find(map, "frozen.weight").kind, Parameter::Kind::frozen);
  EXPECT_EQ(find(map, "frozen.weight").states.at("param").dtype, Dtype::bfloat16);
  EXPECT_EQ(find(map, "seen").states.at("param").dtype, Dtype::int64);
  ASSERT_EQ(map.tied.size(), 1U);
  EXPECT_EQ(map.tied[0].name, "head.weight");
}

TEST(DeepSpeed, ASwapFileIsTheTruth) {
  const Sample sample("stage_3");
  StepInMemory files;
  files.add(kModel, sample.model);
  files.add(kOptimizer, sample.optimizer);
  files.add("offloaded_tensors/rank00/0_0.tensor.swp", std::string(2048, 'm'));
  files.add("offloaded_tensors/rank00/exp_avg-0_0.tensor.swp", std::string(100, 'm'));
  const TensorMap map = read_deepspeed(files, "");
  const Parameter& embedding = find(map, "embedding.weight");
  EXPECT_EQ(embedding.states.at("fp32").pieces[0].file, 2U);
  EXPECT_EQ(embedding.states.at("fp32").pieces[0].size, 97U * 3 * 4);
  EXPECT_FALSE(embedding.states.contains("exp_avg")) << "of a file that is too short";
  ASSERT_FALSE(map.problems.empty());
  EXPECT_EQ(map.problems[0].file, "offloaded_tensors/rank00/exp_avg-0_0.tensor.swp");
}

TEST(DeepSpeed, StageTwo) {
  const Sample sample("stage_2");
  StepInMemory files;
  files.add("mp_rank_00_model_states.pt", sample.model);
  files.add(kOptimizer, sample.optimizer);
  const TensorMap map = read_deepspeed(files, "");
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  const Parameter& embedding = find(map, "embedding.weight");
  EXPECT_EQ(embedding.states.size(), 4U);
  EXPECT_EQ(embedding.states.at("param").pieces[0].file, 0U);
  EXPECT_EQ(embedding.states.at("fp32").pieces[0].file, 1U);
}

// Found by a fuzzer: the second parameter of one name got the tensor that had been moved to the first.
TEST(DeepSpeed, TwoOfOneName) {
  Sample sample("stage_2");
  const std::string from = "layers.2.weight", to = "layers.1.weight";
  for (size_t at = sample.model.find(from); at != std::string::npos; at = sample.model.find(from)) {
    sample.model.replace(at, from.size(), to);
  }
  StepInMemory files;
  files.add("mp_rank_00_model_states.pt", sample.model);
  files.add(kOptimizer, sample.optimizer);
  size_t found = 0;
  for (const Parameter& parameter : read_deepspeed(files, "").parameters) {
    found += parameter.name == to ? 1 : 0;
    for (const auto& [state, tensor] : parameter.states) {
      uint64_t size = 0;
      for (const Piece& piece : tensor.pieces) size += piece.size;
      EXPECT_EQ(size, elements_of(tensor.shape).value() * size_of(tensor.dtype)) << parameter.name << " " << state;
    }
  }
  EXPECT_EQ(found, 2U);
}

// Reads a step that has the files of one or two ranks.
TensorMap read_ranks(const std::vector<Sample>& ranks) {
  constexpr const char* kModels[] = {kModel, "zero_pp_rank_1_mp_rank_00_model_states.pt"};
  constexpr const char* kOptimizers[] = {kOptimizer, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"};
  StepInMemory files;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    files.add(kModels[rank], ranks[rank].model);
    files.add(kOptimizers[rank], ranks[rank].optimizer);
  }
  return read_deepspeed(files, "");
}

// Ranks that do not fit each other are of several saves. Joined, they would be wrong weights.
TEST(DeepSpeed, RanksThatDoNotFitAreNotJoined) {
  const Sample alone("stage_3");
  Sample of_two = alone;
  set_number(of_two.model, "dp_world_size", 2);
  set_number(of_two.optimizer, "partition_count", 2);

  Sample of_more = of_two;  // its model says two ranks, its optimizer one
  of_more.optimizer = alone.optimizer;
  const TensorMap one = read_ranks({of_more});
  EXPECT_TRUE(one.parameters.empty());
  EXPECT_THAT(reasons_of(one), HasSubstr("it is one of 1 ranks, and there are 2"));

  Sample of_nine = alone;
  set_number(of_nine.model, "dp_world_size", 9);
  const TensorMap nine = read_ranks({of_nine});
  EXPECT_TRUE(nine.parameters.empty());
  EXPECT_THAT(reasons_of(nine), HasSubstr("it is of 9 ranks, of which not all have files here"));

  Sample of_stage_two = of_two;
  set_number(of_stage_two.optimizer, "zero_stage", 2);
  const TensorMap stages = read_ranks({of_two, of_stage_two});
  EXPECT_TRUE(stages.parameters.empty());
  EXPECT_THAT(reasons_of(stages), HasSubstr("its stage is not rank 0's"));

  const TensorMap first = read_ranks({alone, alone});
  EXPECT_EQ(find(first, "embedding.weight").states.at("fp32").pieces.size(), 1U);
  EXPECT_THAT(reasons_of(first), HasSubstr("files of more than its 1 ranks lie here, of another save"));
}

TEST(DeepSpeed, AnOptimizerWithoutTheModelsGroupsGivesNoStates) {
  Sample sample("stage_3");
  set_number(sample.optimizer, "zero_stage", 2);  // whose groups have another name
  const TensorMap map = read_ranks({sample});
  EXPECT_TRUE(find(map, "embedding.weight").states.empty());
  EXPECT_THAT(reasons_of(map), HasSubstr("it has not the groups that param_shapes of rank 0 has"));
}

TEST(DeepSpeed, OurMapGivesEachParameterItsNumber) {
  const Sample sample("stage_3");
  StepInMemory files;
  files.add(kModel, sample.model);
  files.add(kOptimizer, sample.optimizer);
  files.add("ckptfs.ds_ids.json", R"({"layers.1.weight": 77, "frozen.weight": 78, "unknown": 3, "norm.bias": -1})");
  const TensorMap map = read_deepspeed(files, "");
  EXPECT_EQ(find(map, "layers.1.weight").ds_id, 77U);
  EXPECT_EQ(find(map, "frozen.weight").ds_id, 78U);
}

TEST(DeepSpeed, WhatIsMissingIsNamedAndTheRestShows) {
  const Sample sample("stage_3");
  StepInMemory without_optimizer;
  without_optimizer.add(kModel, sample.model);
  const TensorMap some = read_deepspeed(without_optimizer, "");
  EXPECT_TRUE(find(some, "embedding.weight").states.empty());
  EXPECT_FALSE(find(some, "frozen.weight").states.empty());
  ASSERT_EQ(some.problems.size(), 1U);
  EXPECT_THAT(some.problems[0].reason, HasSubstr("rank 0 has no optim_states.pt"));

  StepInMemory swap_only;
  swap_only.add("offloaded_tensors/rank01/exp_avg-15_3.tensor.swp", "data");
  const TensorMap none = read_deepspeed(swap_only, "");
  ASSERT_EQ(none.undivided.size(), 1U);
  EXPECT_EQ(none.undivided[0].rank, 1U);
  EXPECT_EQ(none.undivided[0].state, "exp_avg");

  StepInMemory damaged;
  damaged.add(kModel, sample.model.substr(0, 5000));
  damaged.add(kOptimizer, sample.optimizer);
  const TensorMap nothing = read_deepspeed(damaged, "");
  ASSERT_FALSE(nothing.problems.empty());
  EXPECT_EQ(nothing.problems[0].file, kModel);

  StepInMemory foreign;
  foreign.add("layer_00-model_01-model_states.pt", sample.model);
  ASSERT_EQ(read_deepspeed(foreign, "").problems.size(), 1U);
  EXPECT_THAT(read_deepspeed(foreign, "").problems[0].reason, HasSubstr("tensor parallel stages"));
}

}  // namespace
}  // namespace ckptfs::meta::formats

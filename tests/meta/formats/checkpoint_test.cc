#include "meta/formats/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "meta/formats/thinning.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using testing::HasSubstr;

// `header`: of a safetensors file whose tensors have so many bytes.
std::string safetensors(const std::string& header, size_t bytes) {
  std::string file(8, '\0');
  for (size_t at = 0; at < 8; ++at) file[at] = static_cast<char>(header.size() >> (8 * at));
  return file + header + std::string(bytes, 'w');
}

// What DeepSpeed 0.19.8 wrote (tests/fuzz/deepspeed_fuzzer.cc explains the layout), in a Trainer's step.
void add_deepspeed(StepInMemory& step) {
  const auto content = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/deepspeed/stage_3");
  ASSERT_TRUE(content) << content.error().message();
  const std::string& bytes = content.value();
  const size_t length = static_cast<uint8_t>(bytes[1]) | static_cast<size_t>(static_cast<uint8_t>(bytes[2])) << 8;
  step.add("global_step1/zero_pp_rank_0_mp_rank_00_model_states.pt", bytes.substr(3, length));
  step.add("global_step1/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", bytes.substr(3 + length));
}

// The adapter's file says what the model is, and DeepSpeed's say what its optimizer keeps.
TEST(Checkpoint, AnAdapterIsTheModel) {
  StepInMemory step;
  add_deepspeed(step);
  step.add(kAdapterName, safetensors(R"({"embedding.weight":{"dtype":"F32","shape":[97,3],"data_offsets":[0,1164]},)"
                                     R"("here.only":{"dtype":"F32","shape":[2],"data_offsets":[1164,1172]}})",
                                     1172));
  const TensorMap map = read_checkpoint(step);
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  const Parameter& trained = find(map, "embedding.weight");
  EXPECT_EQ(trained.kind, Parameter::Kind::trained);
  EXPECT_EQ(trained.states.at(kParam).pieces.front().file, 2U);
  EXPECT_TRUE(trained.states.contains("exp_avg"));
  EXPECT_EQ(find(map, "here.only").kind, Parameter::Kind::frozen);
  EXPECT_EQ(find(map, "frozen.weight").kind, Parameter::Kind::other) << "it is not the adapter's";
  EXPECT_EQ(weights_name(map, step.list()), kAdapterName);
  EXPECT_EQ(unknown_weights(map).empty(), false) << "a thinning would lose what the adapter lacks";
}

// An extracted LoRA, say, beside a whole model.
TEST(Checkpoint, AnAdapterOfAnotherModelChangesNothing) {
  StepInMemory step;
  add_deepspeed(step);
  const size_t before = read_checkpoint(step).parameters.size();
  step.add(kAdapterName, safetensors(R"({"a.lora_A.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const TensorMap map = read_checkpoint(step);
  EXPECT_EQ(map.parameters.size(), before);
  EXPECT_EQ(find(map, "frozen.weight").kind, Parameter::Kind::frozen);
  EXPECT_EQ(weights_name(map, step.list()), kWeightsName);
}

TEST(Checkpoint, AnAdapterThatCannotBeReadIsTold) {
  StepInMemory step;
  add_deepspeed(step);
  step.add(kAdapterName, "cut");
  const TensorMap map = read_checkpoint(step);
  ASSERT_EQ(map.problems.size(), 1U);
  EXPECT_EQ(map.problems.front().file, kAdapterName);
}

TEST(Checkpoint, OneOfSeveralShardsIsNoModel) {
  StepInMemory step;
  step.add("config.json", "{}");
  step.add("model-00002-of-00002.safetensors",
           safetensors(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const TensorMap map = read_checkpoint(step);
  EXPECT_TRUE(map.parameters.empty());
  EXPECT_EQ(map.problems.size(), 1U);
}

// Of a shape that is another it is another tensor.
TEST(Checkpoint, AnAdapterOfOtherShapesIsNoneOfIt) {
  StepInMemory step;
  add_deepspeed(step);
  step.add(kAdapterName, safetensors(R"({"embedding.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const TensorMap map = read_checkpoint(step);
  const auto count = std::ranges::count(map.parameters, "embedding.weight", &Parameter::name);
  EXPECT_EQ(count, 2);
}

TEST(Checkpoint, ARanksShardIsNoModel) {
  StepInMemory step;
  step.add("config.json", "{}");
  step.add("shard-00001-model-00001-of-00001.safetensors",
           safetensors(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\": {\"saved_offsets\": [0]}}"},)"
                       R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                       8));
  const TensorMap map = read_checkpoint(step);
  EXPECT_TRUE(map.parameters.empty());
  ASSERT_EQ(map.problems.size(), 1U);
  EXPECT_EQ(map.problems.front().kind, Problem::Kind::left_out);
  EXPECT_THAT(map.problems.front().reason, HasSubstr("a rank's part"));
}

}  // namespace
}  // namespace ckptfs::meta::formats

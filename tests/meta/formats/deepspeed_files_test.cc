#include "meta/formats/deepspeed_files.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

TEST(DeepSpeedNames, States) {
  const auto model = parse_states_name("zero_pp_rank_12_mp_rank_00_model_states.pt");
  ASSERT_TRUE(model);
  EXPECT_EQ(model->kind, StatesName::Kind::model);
  EXPECT_EQ(model->rank, 12U);
  EXPECT_EQ(model->model_rank, 0U);
  const auto optimizer = parse_states_name("bf16_zero_pp_rank_0_mp_rank_03_optim_states.pt");
  ASSERT_TRUE(optimizer);
  EXPECT_EQ(optimizer->kind, StatesName::Kind::optimizer);
  EXPECT_EQ(optimizer->model_rank, 3U);
  const auto common = parse_states_name("mp_rank_00_model_states.pt");
  ASSERT_TRUE(common);
  EXPECT_EQ(common->rank, std::nullopt);
  for (const char* name :
       {"zero_pp_rank__mp_rank_00_model_states.pt", "zero_pp_rank_1_model_states.pt", "model_states.pt",
        "layer_0_expert_0_mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt.tmp",
        "zero_pp_rank_99999999999999999999_mp_rank_00_model_states.pt", "mp_rank_-1_optim_states.pt"}) {
    EXPECT_FALSE(parse_states_name(name)) << name;
  }
}

TEST(DeepSpeedNames, LayersAndExperts) {
  EXPECT_EQ(parse_layer_name("layer_03-model_states.pt"), 3U);
  EXPECT_EQ(parse_layer_name("layer_103-model_states.pt"), 103U);
  const auto expert = parse_expert_name("layer_2_expert_11_mp_rank_00_model_states.pt");
  ASSERT_TRUE(expert);
  EXPECT_EQ(*expert, (ExpertName{2, 11}));
  // No two names are of the same part.
  for (const char* const name : {"layer_3-model_states.pt", "layer_003-model_states.pt", "layer_-model_states.pt",
                                 "layer_03-model_01-model_states.pt", "layer_03-model_states.pt.tmp"}) {
    EXPECT_FALSE(parse_layer_name(name)) << name;
  }
  for (const char* const name :
       {"layer_0_expert_01_mp_rank_00_model_states.pt", "layer_0_expert__mp_rank_00_model_states.pt",
        "layer_0_expert_0_mp_rank_01_model_states.pt", "expert_0_mp_rank_00_model_states.pt"}) {
    EXPECT_FALSE(parse_expert_name(name)) << name;
  }
}

// Names alone make room for no more ranks than a run can have.
TEST(DeepSpeedNames, RanksAreBounded) {
  StepInMemory step;
  for (unsigned model_rank = 0; model_rank < kMostModelRanks; ++model_rank) {
    step.add("zero_pp_rank_65535_mp_rank_" + std::to_string(model_rank) + "_optim_states.pt", "x");
  }
  const DeepSpeedFiles found = find_files(step, "");
  size_t places = 0;
  for (const ModelRankFiles& one : found.model_ranks) places += one.ranks.size();
  EXPECT_LE(places, kMostRanks);
  EXPECT_EQ(found.foreign.size(), kMostModelRanks - 1);
}

TEST(DeepSpeedNames, SwapFiles) {
  const auto master = parse_group_name("15_3.tensor.swp");
  ASSERT_TRUE(master);
  EXPECT_EQ(master->state, "fp32");
  EXPECT_EQ(master->first, 15U);
  EXPECT_EQ(master->last, 3U);
  const auto moment = parse_group_name("exp_avg_sq-0_6.tensor.swp");
  ASSERT_TRUE(moment);
  EXPECT_EQ(moment->state, "exp_avg_sq");
  for (const char* name : {"0_6.tensor", "0.tensor.swp", "-0_6.tensor.swp", "a_b.tensor.swp",
                           "0_6_gradient_0_5.tensor.swp", "7_param.tensor.swp", ".tensor.swp"}) {
    EXPECT_FALSE(parse_group_name(name)) << name;
  }
  EXPECT_EQ(parse_param_name("7_param.tensor.swp"), 7U);
  EXPECT_FALSE(parse_param_name("_param.tensor.swp"));
  EXPECT_FALSE(parse_param_name("7x_param.tensor.swp"));
}

}  // namespace
}  // namespace ckptfs::meta::formats

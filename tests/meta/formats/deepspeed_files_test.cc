#include "meta/formats/deepspeed_files.h"

#include <gtest/gtest.h>

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

#include "meta/formats/file_kinds.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace ckptfs::meta::formats {
namespace {

TEST(FileKinds, WhatIsANote) {
  for (const char* path : {"eval_results.json", "all_results.json", "README.md", "config.json", "sub/log.txt",
                           ".cache/huggingface/download/model.safetensors.lock", "sub/.git/index", ".gitattributes"}) {
    EXPECT_TRUE(is_note(path)) << path;
  }
  for (const char* path : {"model.safetensors", "model.safetensors.index.json", "trainer_state.json", "optimizer.pt",
                           ".metadata", "sub/.metadata", "ckptfs.rank00.json", "weights.bin", "rng_state_0.pth",
                           "offloaded_tensors/rank00/0_6.tensor.swp", "latest", "json", "anything", ""}) {
    EXPECT_FALSE(is_note(path)) << path;
  }
}

TEST(FileKinds, Roles) {
  const std::vector<std::pair<const char*, FileRole>> kExpected{
      {"model.safetensors", FileRole::model_safetensors},
      {"model-00001-of-00002.safetensors", FileRole::model_safetensors},
      {"model-x-of-00002.safetensors", FileRole::other_safetensors},
      {"sub/model.safetensors", FileRole::other_safetensors},
      {"model.safetensors.index.json", FileRole::weights_index},
      {"rank00.safetensors", FileRole::other_safetensors},
      {"mp_rank_00_model_states.pt", FileRole::model_states},
      {"global_step4/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", FileRole::optim_states},
      {"layer_00-model_00-model_states.pt", FileRole::other_states},
      {"offloaded_tensors/rank00/0_6.tensor.swp", FileRole::swap_file},
      {".metadata", FileRole::dcp_metadata},
      {"__0.metadata", FileRole::dcp_rank_metadata},
      {".cache/huggingface/download/model.safetensors.metadata", FileRole::note},
      {".tmpAb12Cd", FileRole::temporary},
      {"rng_state_3.pth", FileRole::rng_state},
      {"rng_state_x.pth", FileRole::other_weights},
      {"ckptfs.rank00.json", FileRole::rank_manifest},
      {"random_states_3.pkl", FileRole::random_states},
      {"random_states.pkl", FileRole::other_weights},
      {"custom_checkpoint_0.pkl", FileRole::other_resume},
      {"common.pt", FileRole::other_weights},
      {"actor/optim_world_size_2_rank_0.pt", FileRole::rank_pickle},
      {"pytorch_model_fsdp.bin", FileRole::other_weights},
      {"config.json", FileRole::config},
      {"latest", FileRole::inner_latest},
      {"global_step4/latest", FileRole::other},
      {"modeling_mine.py", FileRole::other},
      {"", FileRole::other},
  };
  for (const auto& [path, role] : kExpected) EXPECT_EQ(kind_of(path).role, role) << path;
}

TEST(FileKinds, WhatMakesAFolderAStep) {
  for (const char* path : {"trainer_state.json", ".metadata", "x_model_states.pt", "ckptfs-thinned.json",
                           "optimizer.bin", "random_states_0.pkl"})
    EXPECT_TRUE(kind_of(path).is_sign(false)) << path;
  EXPECT_FALSE(kind_of("model.safetensors").is_sign(false));
  EXPECT_TRUE(kind_of("model.safetensors").is_sign(true));
  EXPECT_FALSE(kind_of("model.safetensors.index.json").is_sign(true));
  EXPECT_TRUE(is_sign_folder("pytorch_model_fsdp_0"));
  EXPECT_FALSE(is_sign_folder("model"));
}

// Who may read the others may not know the names that stand in these.
TEST(FileKinds, WhatTellsNames) {
  for (const char* path : {"mp_rank_00_model_states.pt", "layer_00-model_00-model_states.pt", "a/__0_0.distcp",
                           "x.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "__0.metadata"})
    EXPECT_TRUE(kind_of(path).tells_names()) << path;
  for (const char* path : {"optimizer.pt", "trainer_state.json", "README.md", "0_0.tensor.swp", "zero_to_fp32.py"})
    EXPECT_FALSE(kind_of(path).tells_names()) << path;
}

}  // namespace
}  // namespace ckptfs::meta::formats

#include "meta/formats/step_names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ckptfs::meta::formats {
namespace {

StepNames names_in(const std::vector<std::string>& paths) {
  std::vector<StepFiles::File> files;
  for (const std::string& path : paths) files.push_back({path});
  return formats::names_of(files);
}

// What a second save of the step writes again. Notes and what a converter made are none of it.
TEST(StepNames, CheckpointFiles) {
  const StepNames names = names_in({"model.safetensors", "merged.safetensors", "config.json", "trainer_state.json",
                                    "optimizer.pt", "eval_results.json", "README.md", "training_args.bin"});
  const auto of_trainer = [&](auto path) { return is_checkpoint_file(names, path); };
  for (const char* const path : {"model.safetensors", "trainer_state.json", "optimizer.pt"})
    EXPECT_TRUE(of_trainer(path)) << path;
  for (const char* const path :
       {"merged.safetensors", "pytorch_model.bin", "model.gguf", "config.json", "rng_state_3.pth"})
    EXPECT_FALSE(of_trainer(path)) << path;
  const StepNames deepspeed = names_in({"mp_rank_00_model_states.pt", "pytorch_model.bin", "trainer_state.json"});
  EXPECT_TRUE(is_checkpoint_file(deepspeed, "mp_rank_00_model_states.pt"));
  EXPECT_TRUE(is_checkpoint_file(deepspeed, "offloaded_tensors/rank00/0_6.tensor.swp"));
  EXPECT_TRUE(is_checkpoint_file(deepspeed, "layer_03-model_states.pt"));
  EXPECT_TRUE(is_checkpoint_file(deepspeed, "layer_0_expert_1_mp_rank_00_model_states.pt"));
  EXPECT_FALSE(is_checkpoint_file(deepspeed, "pytorch_model.bin")) << "zero_to_fp32.py writes it";
  const StepNames dcp = names_in({"__0_0.distcp", ".metadata"});
  EXPECT_FALSE(is_checkpoint_file(dcp, "__0_0.distcp")) << "it may be of more ranks than there are now";
  EXPECT_TRUE(is_written_first(dcp, "__0_0.distcp"));
  EXPECT_FALSE(is_written_first(dcp, ".metadata"));
  EXPECT_TRUE(is_checkpoint_file(dcp, ".metadata"));
}

}  // namespace
}  // namespace ckptfs::meta::formats

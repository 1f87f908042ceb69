// The checkpoints of tests/fuzz/corpus/deepspeed as files by name. tests/fuzz/deepspeed_fuzzer.cc tells their form.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "io/fd.h"

namespace ckptfs::meta::formats {

using StepContents = std::map<std::string, std::string>;

inline std::string corpus(const std::string& name) {
  const auto content = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/" + name);
  EXPECT_TRUE(content) << content.error().message();
  return content.value();
}

inline size_t length_at(const std::string& bytes, size_t at) {
  return static_cast<uint8_t>(bytes[at]) | static_cast<size_t>(static_cast<uint8_t>(bytes[at + 1])) << 8;
}

// What DeepSpeed 0.19.8 wrote, of its only rank: "stage_2", "stage_3". In its form, by hand: "experts_node_local".
inline StepContents deepspeed(const std::string& sample) {
  const std::string bytes = corpus("deepspeed/" + sample);
  const size_t length = length_at(bytes, 1);
  const std::string model =
      sample == "stage_3" ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt";
  return {{model, bytes.substr(3, length)},
          {"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", bytes.substr(3 + length)}};
}

// In DeepSpeed's form, by hand: "pipeline" of one stage, "experts" of one rank, "tensor_parallel" of two ranks.
inline StepContents spread(const std::string& sample) {
  const std::string bytes = corpus("deepspeed/" + sample);
  const size_t model = length_at(bytes, 1), at = 3 + model, optimizer = length_at(bytes, at);
  const std::string states = bytes.substr(3, model), optim = bytes.substr(at + 2, optimizer);
  const std::string third = bytes.substr(at + 2 + optimizer);
  if (sample == "tensor_parallel") {
    return {{"zero_pp_rank_0_mp_rank_00_model_states.pt", states},
            {"zero_pp_rank_0_mp_rank_01_model_states.pt", states},
            {"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", optim},
            {"bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", optim}};
  }
  StepContents step{{"mp_rank_00_model_states.pt", states}, {"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", optim}};
  if (sample == "experts") step["layer_0_expert_0_mp_rank_00_model_states.pt"] = third;
  if (sample == "pipeline") step["layer_00-model_states.pt"] = step["layer_01-model_states.pt"] = third;
  return step;
}

}  // namespace ckptfs::meta::formats

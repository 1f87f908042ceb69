#include "meta/formats/thinning.h"

#include <gtest/gtest.h>

#include "meta/formats/completeness.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using Paths = std::vector<std::string>;

// A map whose tensors lie in these of the files.
TensorMap map_of(const std::vector<uint32_t>& held, Dtype dtype = Dtype::float32) {
  TensorMap map;
  for (const uint32_t file : held) {
    Parameter parameter{"p" + std::to_string(file), Parameter::Kind::trained, std::nullopt, {}};
    parameter.states[kParam] = {dtype, {1}, {{file, 0, size_of(dtype)}}};
    map.parameters.push_back(std::move(parameter));
  }
  return map;
}

std::vector<StepFiles::File> files_named(const Paths& paths) {
  std::vector<StepFiles::File> files;
  for (const std::string& path : paths) files.push_back({path, 10});
  return files;
}

Paths going(const Paths& paths, const std::vector<uint32_t>& held, bool stay = false) {
  Paths found;
  for (const uint32_t index : files_that_go(map_of(held), files_named(paths), stay)) found.push_back(paths[index]);
  return found;
}

TEST(ThinningTest, OfDeepSpeedGoesWhatIsForAResume) {
  const Paths paths{"notes.txt",
                    "offloaded_tensors/rank00/0_2.tensor.swp",
                    "offloaded_tensors/rank00/exp_avg-0_2.tensor.swp",
                    "offloaded_tensors/rank00/mine.txt",
                    "offloaded_params/rank00/7_param.tensor.swp",
                    "zero_pp_rank_0_mp_rank_00_model_states.pt",
                    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                    "zero_to_fp32.py",
                    "zero_to_torch.py",
                    "latest"};
  EXPECT_EQ(going(paths, {1, 5}), (Paths{paths[1], paths[2], paths[4], paths[5], paths[6], paths[7], paths[8]}));
}

TEST(ThinningTest, OfATrainerStaysAllThatIsNotKnown) {
  const Paths paths{"config.json",        "training_args.bin",
                    "trainer_state.json", "optimizer.pt",
                    "scheduler.pt",       "rng_state.pth",
                    "rng_state_3.pth",    "rng_state_x.pth",
                    "scaler.pt",          "optimizer_1.bin",
                    "my_optimizer.pt",    "sub/optimizer.pt",
                    "model.safetensors",  "adapter_model.safetensors",
                    "random_states_0.pkl"};
  EXPECT_EQ(going(paths, {12}, true), (Paths{"optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_3.pth",
                                             "scaler.pt", "optimizer_1.bin", "random_states_0.pkl"}));
  const Paths replaced = going(paths, {12}, false);
  EXPECT_NE(std::find(replaced.begin(), replaced.end(), "model.safetensors"), replaced.end());
}

TEST(ThinningTest, ATrainersInnerStepGoesButNotWhatTheUserPutThere) {
  const Paths paths{"global_step5/zero_pp_rank_0_mp_rank_00_model_states.pt",
                    "global_step5/offloaded_tensors/rank00/0_2.tensor.swp",
                    "global_step5/notes.txt",
                    "global_step6/notes.txt",
                    "latest",
                    "trainer_state.json"};
  EXPECT_EQ(going(paths, {0, 1}), (Paths{paths[0], paths[1], "latest"}));
}

TEST(ThinningTest, OfDcpAndTorchGoesWhatTheWeightsAreMadeFrom) {
  const Paths paths{"pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/.metadata",
                    "optimizer_0/__0_0.distcp", "a/b/__0_0.distcp"};
  EXPECT_EQ(going(paths, {1}), (Paths{paths[0], paths[1], paths[2], paths[3]}));
  const Paths torch{"pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin",
                    "pytorch_model.bin.index.json", "other.bin"};
  EXPECT_EQ(going(torch, {0, 1}), (Paths{torch[0], torch[1], torch[2]}));
}

TEST(ThinningTest, WeightsFilesStayInTheirTypeOnly) {
  const auto files = files_named({"model.safetensors"});
  EXPECT_TRUE(has_weights_files(map_of({0}), files, Dtype::float32));
  EXPECT_FALSE(has_weights_files(map_of({0}), files, Dtype::bfloat16));
  EXPECT_TRUE(has_weights_files(map_of({0}), files, std::nullopt));
  EXPECT_TRUE(has_weights_files(map_of({0}, Dtype::int64), files, Dtype::bfloat16));
  EXPECT_FALSE(has_weights_files(map_of({0}), files_named({"rank00.safetensors"}), Dtype::float32));
}

// PEFT reads only this name.
TEST(ThinningTest, AnAdapterKeepsItsName) {
  const auto files = files_named({"adapter_model.safetensors", "optimizer.pt"});
  EXPECT_EQ(weights_name(map_of({0}), files), "adapter_model.safetensors");
  EXPECT_TRUE(has_weights_files(map_of({0}), files, Dtype::float32));
  EXPECT_EQ(going({"adapter_model.safetensors", "optimizer.pt"}, {0}, true), (Paths{"optimizer.pt"}));
  EXPECT_EQ(going({"adapter_model.safetensors", "optimizer.pt"}, {0}),
            (Paths{"adapter_model.safetensors", "optimizer.pt"}));
  EXPECT_EQ(weights_name(map_of({0}), files_named({"rank00.safetensors"})), "model.safetensors");
  EXPECT_EQ(weights_name(map_of({0}), files_named({"a/model_states.pt"})), "model.safetensors");
  EXPECT_EQ(weights_name(map_of({0}), files_named({"model-00001-of-00001.safetensors"})), "model.safetensors");
}

// The view shows nothing of them, so they may be all that there is of something.
TEST(ThinningTest, FilesOfAnotherFormatStay) {
  EXPECT_EQ(going({"zero_pp_rank_0_mp_rank_00_model_states.pt", "ema/.metadata", "ema/__0_0.distcp"}, {0}),
            (Paths{"zero_pp_rank_0_mp_rank_00_model_states.pt"}));
  EXPECT_EQ(going({"zero_pp_rank_0_mp_rank_00_model_states.pt", "ckptfs.rank00.json", "rank00.safetensors"}, {0}),
            (Paths{"zero_pp_rank_0_mp_rank_00_model_states.pt"}));
  EXPECT_EQ(going({"ckptfs.rank00.json", "rank00.safetensors"}, {1}),
            (Paths{"ckptfs.rank00.json", "rank00.safetensors"}));
}

TEST(ThinningTest, NamesOfWeights) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
    EXPECT_TRUE(is_weights_name(name)) << name;
  }
  for (const char* name : {"a/model.safetensors", "model-1.safetensors", "model-x-of-2.safetensors", "models", ""}) {
    EXPECT_FALSE(is_weights_name(name)) << name;
  }
}

// A second model may be of any type, also beside a model of another one.
TEST(ThinningTest, TensorsThatMayBeWeightsAreTold) {
  const auto add = [](TensorMap& map, const std::string& name, Dtype dtype, std::vector<uint64_t> shape) {
    map.parameters.push_back({name, Parameter::Kind::other, std::nullopt, {{"x", {dtype, std::move(shape), {}}}}});
  };
  TensorMap known = map_of({0});
  add(known, "dice", Dtype::uint8, {5056});
  add(known, "dice_of_gpu", Dtype::uint8, {16});
  add(known, "lr", Dtype::float32, {});
  add(known, "step", Dtype::int64, {1});
  EXPECT_EQ(unknown_weights(known), "");
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float8_e4m3fn, Dtype::int8,
                            Dtype::uint8, Dtype::complex64}) {
    TensorMap map = known;
    add(map, "ema.w", dtype, {90, 90});
    EXPECT_EQ(unknown_weights(map), "ema.w") << torch_name(dtype);
  }
  add(known, "rng.w", Dtype::uint8, {1 << 20});
  EXPECT_EQ(unknown_weights(known), "rng.w");
}

ThinnedManifest a_manifest() {
  return {"deepspeed", "bf16", 5, {{"model.safetensors", 3, "aa"}}, {{"optimizer.pt", 7, ""}}};
}

TEST(ThinningTest, TheManifestIsReadAsItWasWritten) {
  const auto read = parse_thinned(thinned_text(a_manifest()).value());
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read.value().from, "deepspeed");
  EXPECT_EQ(read.value().type, "bf16");
  EXPECT_EQ(read.value().thinned, 5);
  ASSERT_EQ(read.value().kept.size(), 1U);
  EXPECT_EQ(read.value().kept[0].name, "model.safetensors");
  EXPECT_EQ(read.value().kept[0].size, 3U);
  EXPECT_EQ(read.value().kept[0].digest, "aa");
  ASSERT_EQ(read.value().went.size(), 1U);
  EXPECT_EQ(read.value().went[0].name, "optimizer.pt");
  ThinnedManifest large = a_manifest();
  large.went.resize(1 << 18, {"x", 1, ""});
  EXPECT_EQ(thinned_text(large).error().errno_value(), EINVAL);
  for (const char* text : {"", "[]", "{}", R"({"format": 2, "kept": [{"name": "a"}]})",
                           R"({"format": 1, "kept": [{}]})", R"({"format": 1, "kept": [{"name": "a"}, ["b"]]})"}) {
    EXPECT_FALSE(parse_thinned(text)) << text;
  }
}

TEST(ThinningTest, AStepIsOneOfWeightsIfItsManifestFits) {
  const auto judged = [](const std::vector<std::pair<std::string, std::string>>& files) {
    StepInMemory step;
    for (const auto& [path, content] : files) step.add(path, content);
    return judge_completeness(step, {});
  };
  const std::pair<std::string, std::string> told{kThinnedName, thinned_text(a_manifest()).value()};
  EXPECT_EQ(judged({told, {"model.safetensors", "abc"}}).completeness, Completeness::weights);
  EXPECT_EQ(judged({told}).completeness, Completeness::incomplete);
  EXPECT_EQ(judged({told}).reason, "model.safetensors is not there");
  EXPECT_EQ(judged({told, {"model.safetensors", "ab"}}).completeness, Completeness::incomplete);
  EXPECT_EQ(judged({{kThinnedName, "{}"}, {"model.safetensors", "abc"}}).completeness, Completeness::unknown);
  // The manifest was copied into a step that is whole.
  const auto whole = judged({told, {"model.safetensors", "abc"}, {"optimizer.pt", "1234567"}});
  EXPECT_EQ(whole.completeness, Completeness::unknown);
  EXPECT_EQ(whole.reason, "no file tells which files belong to it; the rule complete_when can");
}

}  // namespace
}  // namespace ckptfs::meta::formats

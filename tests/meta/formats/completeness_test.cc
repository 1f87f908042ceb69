#include "meta/formats/completeness.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "meta/formats/checkpoint.h"
#include "meta/formats/step_names.h"
#include "tests/meta/formats/deepspeed_samples.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using Contents = StepContents;

CompletenessJudgement judge(const Contents& contents) {
  StepInMemory files;
  for (const auto& [path, content] : contents) files.add(path, content);
  return judge_completeness(files, read_checkpoint(files));
}

constexpr size_t kEmbedding = size_t{97} * 3 * 4;  // bytes of the group 0_0

Contents swapped() {
  Contents step = deepspeed("stage_3");
  for (const char* const state : {"", "exp_avg-", "exp_avg_sq-"}) {
    step["offloaded_tensors/rank00/" + std::string(state) + "0_0.tensor.swp"] = std::string(kEmbedding, 'm');
  }
  return step;
}

TEST(Completeness, OfDeepSpeed) {
  for (const Contents& step : {deepspeed("stage_3"), deepspeed("stage_2"), swapped()}) {
    const auto judgement = judge(step);
    EXPECT_EQ(judgement.completeness, Completeness::complete) << judgement.reason;
  }
}

TEST(Completeness, AnyFileOfDeepSpeedThatIsNotThere) {
  for (const Contents& step : {deepspeed("stage_3"), deepspeed("stage_2"), swapped()}) {
    for (const auto& [path, content] : step) {
      if (path.ends_with("/0_0.tensor.swp")) continue;  // without this file the group does not count as swapped
      Contents without = step;
      without.erase(path);
      const auto judgement = judge(without);
      EXPECT_EQ(judgement.completeness, Completeness::incomplete) << path << ": " << judgement.reason;
      EXPECT_FALSE(judgement.reason.empty());
    }
  }
}

TEST(Completeness, AnyFileOfDeepSpeedThatEndsTooEarly) {
  const Contents step = swapped();
  for (const auto& [path, content] : step) {
    Contents cut = step;
    cut[path] = content.substr(0, content.size() / 2);
    const auto judgement = judge(cut);
    EXPECT_EQ(judgement.completeness, Completeness::incomplete) << path << ": " << judgement.reason;
  }
}

TEST(Completeness, WhatCannotBeReadIsUnknown) {
  Contents step = deepspeed("stage_3");
  step["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"] = "no zip at all";
  EXPECT_EQ(judge(step).completeness, Completeness::unknown);
  step = deepspeed("stage_3");
  step["mp_rank_01_model_states.pt"] = step["zero_pp_rank_0_mp_rank_00_model_states.pt"];  // model parallel
  EXPECT_EQ(judge(step).completeness, Completeness::unknown);
}

std::string safetensors() {
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + "data";
}

Contents trainer() {
  const std::string zip = deepspeed("stage_3").begin()->second;
  return {{"config.json", "{}"},
          {"model.safetensors", safetensors()},
          {"training_args.bin", zip},
          {"optimizer.pt", zip},
          {"rng_state.pth", zip},
          {"trainer_state.json",
           R"({"global_step": 5, "best_metric": NaN, "log_history": [{"grad_norm": -Infinity, "NaN\"": "NaN"}]})"}};
}

TEST(Completeness, OfATrainer) {
  EXPECT_EQ(judge(trainer()).completeness, Completeness::complete) << judge(trainer()).reason;
  Contents begun = trainer();
  begun.erase("trainer_state.json");
  EXPECT_EQ(judge(begun).completeness, Completeness::incomplete);
  const Contents saved = {{"model.safetensors", safetensors()}, {"config.json", "{}"}, {"training_args.bin", "x"}};
  EXPECT_EQ(judge(saved).completeness, Completeness::unknown) << "a model alone";
}

Contents accelerates() {
  const std::string zip = deepspeed("stage_3").begin()->second;
  return {{"model.safetensors", safetensors()},
          {"optimizer.bin", zip},
          {"scheduler.bin", zip},
          {"random_states_0.pkl", zip}};
}

TEST(Completeness, OfAccelerate) {
  EXPECT_EQ(judge(accelerates()).completeness, Completeness::complete) << judge(accelerates()).reason;
  for (const auto& [path, content] : accelerates()) {
    if (path == "scheduler.bin") continue;
    Contents lacking = accelerates(), cut = accelerates();
    lacking.erase(path);
    cut[path].resize(content.size() - 1);
    EXPECT_NE(judge(lacking).completeness, Completeness::complete) << path;
    EXPECT_NE(judge(cut).completeness, Completeness::complete) << path;
  }
  Contents other = accelerates();
  other.erase("model.safetensors");
  other["custom_checkpoint_0.pkl"] = "what the user has registered";
  EXPECT_EQ(judge(other).completeness, Completeness::incomplete) << "it is no model";
  other["unet/diffusion_pytorch_model.safetensors"] = safetensors();
  EXPECT_EQ(judge(other).completeness, Completeness::complete) << judge(other).reason;
  other["unet/diffusion_pytorch_model.safetensors"].pop_back();
  EXPECT_NE(judge(other).completeness, Completeness::complete) << "it is cut short";
}

// Their files may lie on the machines of the ranks that have them.
TEST(Completeness, ExpertsOfNodeLocalStorageAreInDoubt) {
  const auto judgement = judge(deepspeed("experts_node_local"));
  EXPECT_EQ(judgement.completeness, Completeness::unknown) << judgement.reason;
  EXPECT_NE(judgement.reason.find("layer_0_expert_0"), std::string::npos) << judgement.reason;
}

// It is judged without its map, and what else was found does not get lost by that.
TEST(Completeness, OfAStepThatIsTooLargeForAMap) {
  const auto judge_large = [](const Contents& contents, const std::vector<Problem>& others) {
    StepInMemory files;
    for (const auto& [path, content] : contents) files.add(path, content);
    TensorMap map;
    map.problems = others;
    map.problems.push_back({"", kTooManyTensors});
    return judge_completeness(files, map).completeness;
  };
  for (const Contents& step : {deepspeed("stage_3"), deepspeed("stage_2"), swapped()}) {
    EXPECT_EQ(judge_large(step, {}), Completeness::complete);
    EXPECT_EQ(judge_large(step, {{"a file", "it cannot be read"}}), Completeness::unknown);
    for (const auto& [path, content] : step) {
      if (path.ends_with("/0_0.tensor.swp")) continue;  // without this file the group does not count as swapped
      Contents lacking = step, cut = step;
      lacking.erase(path);
      cut[path].resize(content.size() / 2);
      EXPECT_NE(judge_large(lacking, {}), Completeness::complete) << path;
      EXPECT_NE(judge_large(cut, {}), Completeness::complete) << path;
    }
  }
}

TEST(Completeness, WhatAccelerateNumbers) {
  const std::string zip = deepspeed("stage_3").begin()->second;
  for (const char* second : {"optimizer_1.bin", "model_1.safetensors", "custom_checkpoint_0.pkl"}) {
    Contents step = accelerates();
    step[second] = second == std::string("model_1.safetensors") ? safetensors() : zip;
    EXPECT_EQ(judge(step).completeness, Completeness::complete) << second << ": " << judge(step).reason;
    step[second].pop_back();
    EXPECT_NE(judge(step).completeness, Completeness::complete) << second << " is cut short";
  }
  Contents step = accelerates();
  step["model_1.safetensors"] = step["model.safetensors"];
  step["optimizer_1.bin"] = step["optimizer.bin"];
  for (const char* first : {"model.safetensors", "optimizer.bin"}) {
    Contents lacking = step;
    lacking.erase(first);
    EXPECT_NE(judge(lacking).completeness, Completeness::complete) << first;
  }
  step = accelerates();
  step.erase("model.safetensors");
  step["pytorch_model_1.bin"] = zip;
  EXPECT_NE(judge(step).completeness, Completeness::complete) << "the second model alone";
}

// A file that a user leaves makes no other kind of a step.
TEST(Completeness, AStrangersRandomStates) {
  const std::string zip = deepspeed("stage_3").begin()->second;
  for (const char* name :
       {"random_states.pkl", "random_states_1.pkl", "common.pt", "metadata.json", "ema-model_states.pt"}) {
    Contents step = deepspeed("stage_3");
    step[name] = zip;
    EXPECT_EQ(judge(step).completeness, Completeness::complete) << name << ": " << judge(step).reason;
  }
  Contents step = trainer();
  step["common.pt"] = step["model.safetensors"];
  step.erase("model.safetensors");
  EXPECT_NE(judge(step).completeness, Completeness::incomplete) << "it may hold the weights";
}

TEST(Completeness, ShardsWithoutAnIndexBelongTogether) {
  Contents step = trainer();
  step.erase("model.safetensors");
  step["model-00002-of-00002.safetensors"] = safetensors();
  EXPECT_EQ(judge(step).completeness, Completeness::unknown);
  step["model-00001-of-00002.safetensors"] = safetensors();
  EXPECT_EQ(judge(step).completeness, Completeness::complete) << judge(step).reason;
  step = accelerates();
  step.erase("model.safetensors");
  step["unet/model-00001-of-00002.safetensors"] = safetensors();
  step["unet/model.safetensors.index.json"] =
      R"({"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})";
  EXPECT_EQ(judge(step).completeness, Completeness::unknown) << "the index in the folder names another one";
}

// A converter that was killed leaves them in a whole step.
TEST(Completeness, WhatAConverterLeavesCutOff) {
  const std::string zip = deepspeed("stage_3").begin()->second;
  for (Contents step : {deepspeed("stage_3"), trainer()}) {
    step["hf/pytorch_model.bin"] = zip.substr(0, zip.size() / 2);
    step["hf/model-00001-of-00002.safetensors"] = safetensors();
    EXPECT_EQ(judge(step).completeness, Completeness::complete) << judge(step).reason;
  }
}

TEST(Completeness, OfRanksThatSaveByThemselves) {
  const std::string zip = deepspeed("stage_3").begin()->second;
  Contents step;
  for (const char* what : {"model", "optim", "extra_state"}) {
    for (const char* rank : {"0", "1"}) step["actor/" + std::string(what) + "_world_size_2_rank_" + rank + ".pt"] = zip;
  }
  EXPECT_EQ(judge(step).completeness, Completeness::unknown) << "the critic, and data.pt, may be yet to come";
  step["data.pt"] = zip;
  EXPECT_EQ(judge(step).completeness, Completeness::complete) << judge(step).reason;
  for (const auto& [path, content] : step) {
    Contents lacking = step, cut = step;
    lacking.erase(path);
    cut[path].resize(content.size() - 1);
    EXPECT_EQ(judge(lacking).completeness, Completeness::unknown) << path << ": another machine may have it";
    EXPECT_EQ(judge(cut).completeness, Completeness::incomplete) << path;
  }
  step["actor/model_world_size_1_rank_0.pt"] = zip;
  EXPECT_EQ(judge(step).completeness, Completeness::unknown) << "of another number of ranks";
}

// As by an `rm -r` that was killed, in the order of the names or in any other.
TEST(Completeness, ATrainersThatHasLostItsWeights) {
  Contents step = trainer();
  step["tokenizer.json"] = "{}";
  step.erase("config.json");
  EXPECT_EQ(judge(step).completeness, Completeness::complete);
  step.erase("model.safetensors");
  for (const char* next : {"optimizer.pt", "rng_state.pth", "tokenizer.json"}) {
    EXPECT_EQ(judge(step).completeness, Completeness::incomplete) << "before " << next;
    EXPECT_EQ(judge(step).reason, "a file of weights is not there");
    step.erase(next);
  }
  EXPECT_EQ(judge(step).completeness, Completeness::incomplete);
  step["tokenizer.model"] = "of sentencepiece";
  EXPECT_EQ(judge(step).completeness, Completeness::incomplete);
  for (const char* unknown :
       {"weights.dat", "spiece.model", "modeling_mine.py", "vocab.bpe", ".tmpAb12Cd", "a/w.json"}) {
    Contents other = step;
    other[unknown] = "may be weights, or not";
    EXPECT_EQ(judge(other).completeness, Completeness::unknown) << unknown;
  }
}

TEST(Completeness, WhatAnIndexNames) {
  Contents step = trainer();
  step.erase("model.safetensors");
  step["model-00001-of-00002.safetensors"] = step["model-00002-of-00002.safetensors"] = safetensors();
  step["model.safetensors.index.json"] =
      R"({"weight_map": {"v": "model-00001-of-00002.safetensors", "w": "model-00002-of-00002.safetensors"}})";
  EXPECT_EQ(judge(step).completeness, Completeness::complete) << judge(step).reason;
  Contents no_config = step;
  no_config.erase("config.json");
  EXPECT_EQ(judge(no_config).completeness, Completeness::unknown);
  Contents lacks = step;
  lacks.erase("model-00002-of-00002.safetensors");
  EXPECT_EQ(judge(lacks).completeness, Completeness::incomplete);
  EXPECT_EQ(judge(lacks).reason, "model-00002-of-00002.safetensors is not there");
  lacks["model.safetensors"] = safetensors();
  EXPECT_EQ(judge(lacks).completeness, Completeness::complete) << "the index is left over";
  Contents converted = trainer();  // from torch's format, whose shards were removed
  converted["pytorch_model.bin.index.json"] = R"({"weight_map": {"w": "pytorch_model-00001-of-00002.bin"}})";
  EXPECT_EQ(judge(converted).completeness, Completeness::unknown);
  Contents elsewhere = step;
  elsewhere["model.safetensors.index.json"] = R"({"weight_map": {"v": "../model-00001-of-00002.safetensors"}})";
  EXPECT_EQ(judge(elsewhere).completeness, Completeness::unknown);
  for (const char* text : {"", "{", R"({"weight_map": 3})"}) {
    step["model.safetensors.index.json"] = text;
    EXPECT_EQ(judge(step).completeness, Completeness::unknown) << text;
  }
}

TEST(Completeness, WhatBelongsTogether) {
  Contents step = trainer();
  step["scheduler.pt"] = step["optimizer.pt"];
  EXPECT_EQ(judge(step).completeness, Completeness::complete) << judge(step).reason;
  step.erase("optimizer.pt");
  EXPECT_EQ(judge(step).completeness, Completeness::unknown) << "no optimizer";
  Contents none = trainer();
  none["trainer_state.json"] = "{}";
  EXPECT_EQ(judge(none).completeness, Completeness::unknown) << "no Trainer's state";
  Contents fsdp{{"trainer_state.json", R"({"global_step": 5})"}, {"optimizer_0/__0_0.distcp", "x"}};
  EXPECT_EQ(judge(fsdp).completeness, Completeness::unknown) << "no .metadata";
  Contents adapter = trainer();
  adapter.erase("model.safetensors");
  adapter["adapter_model.safetensors"] = safetensors();
  EXPECT_EQ(judge(adapter).completeness, Completeness::unknown) << "no adapter_config.json";
  adapter["adapter_config.json"] = "{}";
  EXPECT_EQ(judge(adapter).completeness, Completeness::complete) << judge(adapter).reason;
}

// What PyTorch's DCP wrote, in the folders of a Trainer with FSDP.
TEST(Completeness, BothFoldersOfFsdp) {
  const auto corpus = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/checkpoint/dcp");
  ASSERT_TRUE(corpus) << corpus.error().message();
  const std::string& bytes = corpus.value();
  const auto length_at = [&bytes](size_t at) {
    return static_cast<uint8_t>(bytes[at]) | static_cast<size_t>(static_cast<uint8_t>(bytes[at + 1])) << 8;
  };
  const size_t metadata = length_at(1), first = length_at(3);
  const Contents dcp{{".metadata", bytes.substr(5, metadata)},
                     {"__0_0.distcp", bytes.substr(5 + metadata, first)},
                     {"__1_0.distcp", bytes.substr(5 + metadata + first)}};
  Contents step{{"trainer_state.json", R"({"global_step": 5})"}, {"training_args.bin", trainer()["training_args.bin"]}};
  step["scheduler.pt"] = step["training_args.bin"];
  for (const std::string folder : {"pytorch_model_fsdp_0/", "optimizer_0/"}) {
    for (const auto& [path, content] : dcp) step[folder + path] = content;
  }
  EXPECT_EQ(judge(step).completeness, Completeness::complete) << judge(step).reason;
  for (const std::string folder : {"pytorch_model_fsdp_0/", "optimizer_0/"}) {
    Contents without = step;
    std::erase_if(without, [&](const auto& file) { return file.first.starts_with(folder); });
    EXPECT_EQ(judge(without).completeness, Completeness::unknown) << folder;
  }
}

// DeepSpeed's layers, experts and ranks of tensor parallelism have files of their own.
TEST(Completeness, OfAModelThatIsSpread) {
  for (const std::string sample : {"pipeline", "experts", "tensor_parallel"}) {
    const Contents step = spread(sample);
    EXPECT_EQ(judge(step).completeness, Completeness::complete) << sample << ": " << judge(step).reason;
    for (const auto& [path, content] : step) {
      Contents without = step, cut = step;
      without.erase(path);
      cut[path] = content.substr(0, content.size() - 64);
      EXPECT_NE(judge(without).completeness, Completeness::complete) << sample << " without " << path;
      EXPECT_NE(judge(cut).completeness, Completeness::complete) << sample << " with a cut " << path;
    }
  }
}

// What an older save with more experts has left is no part of the model.
TEST(Completeness, ExpertsThatAStepDoesNotHave) {
  Contents step = spread("experts");
  step["layer_0_expert_1_mp_rank_00_model_states.pt"] = step.at("layer_0_expert_0_mp_rank_00_model_states.pt");
  StepInMemory files;
  for (const auto& [path, content] : step) files.add(path, content);
  const TensorMap map = read_checkpoint(files);
  ASSERT_EQ(map.problems.size(), 1U);
  EXPECT_EQ(map.problems.front().kind, Problem::Kind::left_out) << map.problems.front().reason;
  EXPECT_EQ(map.parameters.size(), 2U);
}

TEST(Completeness, ModelParallelRanksOfTwoSaves) {
  Contents step = spread("tensor_parallel");
  std::string& other = step.at("zero_pp_rank_0_mp_rank_01_model_states.pt");
  const size_t at = other.find('K', other.find("global_steps"));
  ASSERT_LT(at, other.size() - 1);
  ++other[at + 1];
  EXPECT_NE(judge(step).completeness, Completeness::complete);
}

// A power loss leaves unsynced files like this: their names are there, and a part of their content.
TEST(Completeness, WhatOfATrainersIsCutShortOrEmpty) {
  const Contents whole = trainer();
  for (const auto& [path, content] : whole) {
    if (path == "config.json") continue;
    for (const size_t length : {size_t{0}, content.size() / 2, content.size() - 1}) {
      Contents cut = whole;
      cut[path] = content.substr(0, length);
      const auto judgement = judge(cut);
      EXPECT_NE(judgement.completeness, Completeness::complete) << path << " of " << length << " bytes";
    }
  }
}

TEST(Completeness, OfATrainerWithDeepSpeed) {
  Contents step = {{"config.json", "{}"}, {"latest", "global_step4"}, {"trainer_state.json", R"({"global_step": 4})"}};
  for (const auto& [path, content] : deepspeed("stage_3")) step["global_step4/" + path] = content;
  EXPECT_EQ(judge(step).completeness, Completeness::complete) << judge(step).reason;
  for (const char* latest : {"", "global_step3"}) {
    Contents other = step;
    other["latest"] = latest;
    EXPECT_EQ(judge(other).completeness, Completeness::unknown) << latest;
  }
  Contents without_latest = step;
  without_latest.erase("latest");
  EXPECT_EQ(judge(without_latest).completeness, Completeness::unknown);
  Contents without_state = step;
  without_state.erase("trainer_state.json");
  EXPECT_EQ(judge(without_state).completeness, Completeness::unknown);
  step.erase("global_step4/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
  EXPECT_EQ(judge(step).completeness, Completeness::incomplete);
}

// Each node has the files of its own ranks only.
TEST(Completeness, WhatMayLieOnAnotherMachineIsUnknown) {
  Contents step;
  for (const auto& [path, content] : deepspeed("stage_3")) {
    std::string of_rank_2 = path;
    of_rank_2.replace(of_rank_2.find("rank_0_"), 7, "rank_2_");
    step[of_rank_2] = content;
  }
  EXPECT_EQ(judge(step).completeness, Completeness::unknown);
}

TEST(Completeness, OfWhatTellsNothing) {
  EXPECT_EQ(judge({}).completeness, Completeness::unknown);
  EXPECT_EQ(judge({{"config.json", "{}"}, {"model.safetensors", "x"}}).completeness, Completeness::unknown);
  EXPECT_EQ(judge({{"offloaded_tensors/rank00/0_0.tensor.swp", "x"}}).completeness, Completeness::unknown);
}

CompletenessJudgement judge_left(const Contents& contents, const SiblingFiles& siblings = {}) {
  StepInMemory files;
  for (const auto& [path, content] : contents) files.add(path, content);
  return judge_abandoned(files, judge_completeness(files, read_checkpoint(files)), siblings);
}

// Of a step that nobody will finish more can be said.
TEST(Abandoned, WhatIsMissingWillNotCome) {
  EXPECT_EQ(judge_left({}).completeness, Completeness::incomplete);
  EXPECT_EQ(judge_left(deepspeed("stage_3")).completeness, Completeness::complete);
  EXPECT_EQ(judge_left({{"config.json", "{}"}, {"training_args.bin", ""}}).completeness, Completeness::incomplete);
  EXPECT_EQ(judge_left({{"optimizer.pt", "x"}, {"training_args.bin", "x"}}).completeness, Completeness::incomplete);
  EXPECT_EQ(judge_left({{"weights.pt", std::string("PK\3\4", 4)}}).completeness, Completeness::incomplete);
}

// How a Hugging Face model begins. With its weights it may be all that its writer wanted to save.
TEST(Abandoned, AModelWithoutItsWeights) {
  Contents model{{"config.json", "{}"}, {"generation_config.json", "{}"}};
  EXPECT_EQ(judge_left(model).completeness, Completeness::incomplete);
  model["model-00001-of-00002.safetensors"] = safetensors();
  EXPECT_EQ(judge_left(model).completeness, Completeness::incomplete);
  Contents left_over = model;
  left_over["model.safetensors"] = safetensors();
  EXPECT_EQ(judge_left(left_over).completeness, Completeness::unknown)
      << "a save of shards died, and another one did not";
  model["model.safetensors.index.json"] = "{}";
  EXPECT_EQ(judge_left(model).completeness, Completeness::unknown);
}

TEST(Abandoned, ByTheFilesOfItsSiblings) {
  const Contents resume{{"model.safetensors", safetensors()}, {"optimizer.pt", deepspeed("stage_3").begin()->second}};
  EXPECT_EQ(judge_left(resume).completeness, Completeness::unknown);
  EXPECT_EQ(judge_left(resume, {.trainer_state = true}).completeness, Completeness::incomplete);
  const Contents dcp{{"__0_0.distcp", "x"}};
  EXPECT_EQ(judge_left(dcp).completeness, Completeness::unknown);
  EXPECT_EQ(judge_left(dcp, {.dcp_metadata = true}).completeness, Completeness::incomplete);
}

// As safetensors begins: its file has its name once it is written.
TEST(Abandoned, AModelThatWasBeingWritten) {
  const Contents begun{{"config.json", "{}"}, {"generation_config.json", "{}"}, {".tmpAb12Cd", "x"}};
  EXPECT_EQ(judge_left(begun, {.trainer_state = true}).completeness, Completeness::incomplete);
  const Contents model{{"config.json", "{}"}, {"model.onnx", "x"}};
  EXPECT_EQ(judge_left(model, {.trainer_state = true}).completeness, Completeness::unknown);
}

// The base model as checkpoint-0; the last step of a run, saved as a Hugging Face model beside DCP's.
TEST(Abandoned, AModelOfAnotherKindThanItsSiblings) {
  const Contents model{{"config.json", "{}"}, {"model.safetensors", safetensors()}, {"training_args.bin", ""}};
  Contents base = model;
  base.erase("training_args.bin");
  const Contents shards{
      {"model-00001-of-00001.safetensors", safetensors()},
      {"model.safetensors.index.json", R"({"weight_map": {"w": "model-00001-of-00001.safetensors"}})"}};
  for (const SiblingFiles& siblings : {SiblingFiles{}, SiblingFiles{.trainer_state = true},
                                       SiblingFiles{.dcp_metadata = true}, SiblingFiles{.first_model_states = true}}) {
    EXPECT_EQ(judge_left(base, siblings).completeness, Completeness::unknown);
    EXPECT_EQ(judge_left(shards, siblings).completeness, Completeness::unknown);
  }
  EXPECT_EQ(judge_left(model).completeness, Completeness::incomplete) << "an empty training_args.bin is cut off";
}

// Other machines may have what DCP's .metadata names and is not there.
TEST(Abandoned, PartsOnOtherMachines) {
  EXPECT_EQ(judge_left({{".metadata", "x"}, {"__0_0.distcp", "x"}}).completeness, Completeness::unknown);
  const Contents fsdp{{"training_args.bin", "x"}, {"pytorch_model_fsdp_0/.metadata", "x"}};
  EXPECT_EQ(judge_left(fsdp).completeness, Completeness::incomplete) << "a Trainer's own file is on its first machine";
  const Contents second{{"zero_pp_rank_1_mp_rank_00_optim_states.pt", "x"}};
  EXPECT_EQ(judge_left(second).completeness, Completeness::unknown);
  EXPECT_EQ(judge_left(second, {.first_model_states = true}).completeness, Completeness::incomplete);
}

}  // namespace
}  // namespace ckptfs::meta::formats

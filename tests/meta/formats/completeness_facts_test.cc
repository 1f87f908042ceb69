#include "meta/formats/completeness_facts.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "meta/formats/checkpoint.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/manifest.h"
#include "meta/formats/thinning.h"
#include "tests/meta/formats/deepspeed_samples.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

constexpr size_t kOneFlat = size_t{97} * 3 * 4;  // bytes of the group 0_0 in each rank
constexpr const char* kSwapFolder = "offloaded_tensors/rank0";

// Replaces the first small number after `key` in a pickle.
void replace_number(std::string& pickle, const std::string& key, char number) {
  const size_t at = pickle.find('K', pickle.find(key) + key.size());
  ASSERT_LT(at, pickle.size() - 1);
  pickle[at + 1] = number;
}

// Doubles the first dimension of each parameter: then each of two ranks has what the only one had.
void double_shapes(std::string& pickle) {
  const size_t end = pickle.find("frozen_param_shapes");
  for (size_t at = pickle.find("param_shapes"); at < end; ++at) {
    if (pickle[at] != 'K') continue;
    const bool of_two = pickle[at + 2] == 'K' && pickle[at + 4] == '\x86', of_one = pickle[at + 2] == '\x85';
    if (of_two || of_one) pickle[at + 1] = static_cast<char>(pickle[at + 1] * 2);
    if (of_two) at += 4;
  }
}

std::string states_name(unsigned rank, const char* kind) {
  return std::string(kind[0] == 'o' ? "bf16_" : "") + "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_" + kind +
         "_states.pt";
}

StepContents stage_3(unsigned ranks) {
  const std::string bytes = corpus("deepspeed/stage_3");
  std::string model = bytes.substr(3, length_at(bytes, 1)), optimizer = bytes.substr(3 + model.size());
  if (ranks == 2) {
    replace_number(model, "dp_world_size", 2);
    replace_number(optimizer, "partition_count", 2);
    double_shapes(model);
  }
  StepContents step;
  for (unsigned rank = 0; rank < ranks; ++rank) {
    step[states_name(rank, "model")] = model;
    step[states_name(rank, "optim")] = optimizer;
  }
  return step;
}

StepContents on_nvme() {
  StepContents step = stage_3(2);
  for (unsigned rank = 0; rank < 2; ++rank) {
    for (const char* const state : {"", "exp_avg-", "exp_avg_sq-"}) {
      step[kSwapFolder + std::to_string(rank) + "/" + state + "0_0.tensor.swp"] = std::string(kOneFlat, 'm');
    }
  }
  return step;
}

std::string one_tensor() {
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + "data";
}

constexpr const char* kTrainerState = R"({"global_step": 1})";

StepContents trainers() {
  const std::string zip = stage_3(1).begin()->second;
  return {{"model.safetensors", one_tensor()},
          {"training_args.bin", zip},
          {"optimizer.pt", zip},
          {"rng_state_0.pth", zip},
          {"rng_state_1.pth", zip},
          {"trainer_state.json", kTrainerState}};
}

StepContents joined(StepContents step, const StepContents& more, const std::string& folder) {
  for (const auto& [path, content] : more) step[folder + path] = content;
  return step;
}

StepContents dcp() {
  const std::string bytes = corpus("checkpoint/dcp");
  const size_t metadata = length_at(bytes, 1), first = length_at(bytes, 3);
  return {{".metadata", bytes.substr(5, metadata)},
          {"__0_0.distcp", bytes.substr(5 + metadata, first)},
          {"__1_0.distcp", bytes.substr(5 + metadata + first)}};
}

StepContents by_our_saver() {
  StepContents step;
  for (unsigned rank = 0; rank < 2; ++rank) {
    const std::string name = "rank0" + std::to_string(rank) + ".safetensors";
    step[name] = one_tensor();
    step[manifest_name(rank)] = manifest_text({"a1", rank, 2, {{name, one_tensor().size()}}});
  }
  return step;
}

StepContents weights_alone() {
  const ThinnedManifest manifest{"deepspeed",
                                 "bf16",
                                 5,
                                 {{"model.safetensors", one_tensor().size(), ""}, {"config.json", 2, ""}},
                                 {{"optimizer.pt", 7, ""}}};
  return {{kThinnedName, thinned_text(manifest).value()},
          {"model.safetensors", one_tensor()},
          {"config.json", "{}"},
          {"other", "x"}};
}

StepContents failed_part() {
  return joined(trainers(), {{"rank00.safetensors", one_tensor()}}, "partial-5f3a-global_step500/");
}

const std::map<std::string, StepContents>& kinds() {
  static const std::map<std::string, StepContents> kinds = {
      {"stage 3", stage_3(1)},
      {"stage 3 of two ranks", stage_3(2)},
      {"stage 3 on NVMe", on_nvme()},
      {"stage 2", deepspeed("stage_2")},
      {"a pipeline's", spread("pipeline")},
      {"experts", spread("experts")},
      {"tensor parallel", spread("tensor_parallel")},
      {"a Trainer's", trainers()},
      {"a Trainer's with DeepSpeed",
       joined({{"trainer_state.json", kTrainerState}, {"config.json", "{}"}, {"latest", "global_step4"}}, stage_3(2),
              "global_step4/")},
      {"DeepSpeed's in a folder", joined({{"config.json", "{}"}}, stage_3(2), "global_step4/")},
      {"DCP", dcp()},
      {"a Trainer's with DCP", joined({{"trainer_state.json", kTrainerState}, {"model.safetensors", one_tensor()}},
                                      dcp(), "pytorch_model_fsdp_0/")},
      {"by our Saver", by_our_saver()},
      {"our Saver's in a Trainer's",
       joined(by_our_saver(), {{"trainer_state.json", kTrainerState}, {"config.json", "{}"}}, "")},
      {"weights", weights_alone()},
      {"a part that failed", failed_part()},
      {"torch.save", {{"weights.pt", stage_3(1).begin()->second}, {"other.pt", "x"}, {"empty.bin", ""}}},
  };
  return kinds;
}

CompletenessFacts make_facts(const StepContents& contents) {
  StepInMemory files;
  for (const auto& [path, content] : contents) files.add(path, content);
  return completeness_facts(files, read_checkpoint(files));
}

// Most placements share machines with others.
const CompletenessFacts& facts_alone(const StepContents& contents) {
  static std::map<StepContents, CompletenessFacts> known;
  const auto found = known.find(contents);
  return found != known.end() ? found->second : known.emplace(contents, make_facts(contents)).first->second;
}

CompletenessJudgement judge_whole(const StepContents& contents) {
  StepInMemory files;
  for (const auto& [path, content] : contents) files.add(path, content);
  return judge_completeness(files, read_checkpoint(files));
}

// The machine of each file.
using Placement = std::map<std::string, size_t>;

// DeepSpeed names the swap folders of each machine from rank00 on. Only two ranks are in these tests.
std::string local_name(const std::string& path, const Placement& placement) {
  const size_t at = path.find(kSwapFolder);
  if (at == std::string::npos) return path;
  const size_t digit = at + std::string(kSwapFolder).size();
  std::string first = path;
  first[digit] = '0';
  if (placement.at(first) == placement.at(path)) return path;
  return first;
}

CompletenessJudgement judge_placed(const StepContents& step, const Placement& placement, size_t machines) {
  std::vector<StepContents> shares(machines);
  std::vector<StepFiles::File> files;
  for (const auto& [path, content] : step) {
    shares[placement.at(path)][local_name(path, placement)] = content;
    files.push_back({path, content.size()});
  }
  std::vector<const CompletenessFacts*> facts;
  for (const StepContents& share : shares) facts.push_back(&facts_alone(share));
  return judge_together(facts, files);
}

// What lies on one machine together: the files of a rank of DeepSpeed, and with those of the first `latest`; a stage's
// layers with what tells of them. Any other
// file may lie anywhere.
std::string unit_of(const std::string& path) {
  if (path == "latest") return "rank 0";
  if (parse_layer_name(path)) return "mp_rank_00_model_states.pt";
  const auto states = parse_states_name(path.substr(path.rfind('/') + 1));
  const bool of_rank = (states && states->rank) || path.starts_with(kSwapFolder);
  if (!of_rank) return path;
  const bool second = path.find("rank_1_") != std::string::npos || path.find("rank01/") != std::string::npos;
  return second ? "rank 1" : "rank 0";
}

// All ways to lay the files onto the machines, or some of them if they are many.
std::vector<Placement> placements(const StepContents& step, size_t machines) {
  std::map<std::string, size_t> units;
  for (const auto& [path, content] : step) units[unit_of(path)] = 0;
  size_t ways = 1;
  for (size_t at = 0; at < units.size(); ++at) ways *= machines;
  constexpr size_t kMostWays = 16;
  std::mt19937 random(1);
  std::vector<Placement> found;
  for (size_t at = 0; at < std::min(ways, kMostWays); ++at) {
    size_t way = ways <= kMostWays ? at : random() % ways;
    for (auto& [unit, machine] : units) {
      machine = way % machines;
      way /= machines;
    }
    Placement& placement = found.emplace_back();
    for (const auto& [path, content] : step) placement[path] = units.at(unit_of(path));
  }
  return found;
}

// What could lie on yet another machine is nowhere.
Completeness wanted(const StepContents& step) {
  const CompletenessJudgement judgement = judge_whole(step);
  const bool without_metadata = [&] {
    for (const char* const folder : {"", "pytorch_model_fsdp_0/"}) {
      const std::string place = folder;
      const bool used = step.contains(place + "__0_0.distcp") || step.contains(place + "__1_0.distcp");
      if (used && !step.contains(place + ".metadata")) return true;
    }
    return false;
  }();
  // Nothing tells which layers share a module. So another machine may have the file of it.
  if (judgement.reason.ends_with("which layers share")) return Completeness::unknown;
  if (without_metadata || judgement.reason == "rank 0 has no model_states.pt here") return Completeness::incomplete;
  return judgement.completeness;
}

void expect_like(Completeness expected, const StepContents& step, const Placement& placement, size_t machines,
                 const std::string& what) {
  const CompletenessJudgement together = judge_placed(step, placement, machines);
  std::string where;
  for (const auto& [path, machine] : placement) where += path + " on " + std::to_string(machine) + "\n";
  EXPECT_EQ(static_cast<int>(together.completeness), static_cast<int>(expected))
      << what << "\ntogether: " << together.reason << "\nwhole: " << judge_whole(step).reason << "\n"
      << where;
  EXPECT_EQ(together.reason.empty(), is_whole(together.completeness)) << what;
}

TEST(CompletenessFacts, TheKindsAreWhatTheyShouldBe) {
  for (const auto& [kind, step] : kinds()) {
    const bool unknown = kind == "torch.save" || kind == "DeepSpeed's in a folder";
    const Completeness expected = kind == "weights"              ? Completeness::weights
                                  : kind == "a part that failed" ? Completeness::incomplete
                                  : unknown                      ? Completeness::unknown
                                                                 : Completeness::complete;
    EXPECT_EQ(judge_whole(step).completeness, expected) << kind << ": " << judge_whole(step).reason;
  }
}

class OnMachines : public testing::TestWithParam<size_t> {
 protected:
  // The step lies on the machines as `whole` would, in any way.
  void expect_like_whole(const StepContents& step, const StepContents& whole, const std::string& what) {
    const Completeness expected = wanted(step);
    for (const Placement& placement : placements(whole, GetParam())) {
      expect_like(expected, step, placement, GetParam(), what);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(CompletenessFacts, OnMachines, testing::Values(2, 3));

TEST_P(OnMachines, TogetherTheyAreLikeTheWhole) {
  for (const auto& [kind, step] : kinds()) expect_like_whole(step, step, kind);
}

TEST_P(OnMachines, WithoutAnyOneFileTheyAreLikeTheWholeWithoutIt) {
  for (const auto& [kind, step] : kinds()) {
    for (const auto& [path, content] : step) {
      StepContents without = step;
      without.erase(path);
      expect_like_whole(without, step, kind + " without " + path);
    }
  }
}

TEST_P(OnMachines, WithAnyOneFileCutTheyAreLikeTheWholeWithItCut) {
  for (const auto& [kind, step] : kinds()) {
    for (const auto& [path, content] : step) {
      StepContents cut = step;
      cut[path] = content.substr(0, content.size() / 2);
      expect_like_whole(cut, step, kind + " with a cut " + path);
    }
  }
}

TEST(CompletenessFacts, TheyComeBackFromJson) {
  for (const auto& [kind, step] : kinds()) {
    for (const auto& [path, content] : step) {
      StepContents without = step;
      without.erase(path);
      const auto back = facts_of(nlohmann::json::parse(json_of(facts_alone(without)).dump()));
      ASSERT_TRUE(back) << back.error().message();
      EXPECT_EQ(back.value(), facts_alone(without)) << kind << " without " << path;
    }
  }
}

TEST(CompletenessFacts, OneMachineIsJudgedAlone) {
  for (const auto& [kind, step] : kinds()) {
    for (const auto& [path, content] : step) {
      StepContents without = step;
      without.erase(path);
      const CompletenessFacts facts = facts_alone(without);
      EXPECT_EQ(judge_together({&facts}, {}), judge_whole(without)) << kind << " without " << path;
    }
  }
}

TEST(CompletenessFacts, AShareSaysWhatItDemands) {
  StepContents step = on_nvme();
  std::erase_if(step, [](const auto& file) {
    return file.first.find("rank_1_") != std::string::npos || file.first.find("rank01") != std::string::npos;
  });
  const CompletenessFacts first = facts_alone(step);
  EXPECT_EQ(first.states.missing, (std::vector<MissingFile>{{"zero_pp_rank_1_mp_rank_00_optim_states.pt"},
                                                            {"zero_pp_rank_1_mp_rank_00_model_states.pt"}}));
  EXPECT_TRUE(first.states.broken.empty()) << first.states.broken;
  EXPECT_TRUE(first.states.unclear.empty()) << first.states.unclear;

  StepContents chunks = dcp();
  chunks.erase("__1_0.distcp");
  const auto demanded = facts_alone(chunks).states.missing;
  ASSERT_EQ(demanded.size(), 1U);
  EXPECT_EQ(demanded[0].path, "__1_0.distcp");
  EXPECT_EQ(demanded[0].least, dcp().at("__1_0.distcp").size());
}

TEST(CompletenessFacts, WhatWasNotReadInFullIsUnknown) {
  StepInMemory files(io::ReadLimit(1000));
  for (const auto& [path, content] : stage_3(2)) files.add(path, content);
  const CompletenessFacts refused = completeness_facts(files, read_checkpoint(files)), none = facts_alone({});
  EXPECT_EQ(judge_together({&refused, &none}, files.list()).completeness, Completeness::unknown);
}

TEST(CompletenessFacts, OfAnotherFormatAreRefused) {
  for (const char* const text :
       {"[]", "{}", R"({"judged": 5})", R"({"judged": "whole"})", R"({"judged": "complete", "reason": 5})",
        R"({"judged": "complete", "states": []})", R"({"judged": "complete", "states": {"missing": {}}})",
        R"({"judged": "complete", "states": {"missing": [["a", 1]]}})",
        R"({"judged": "complete", "states": {"missing": [["a", -1, 1]]}})",
        R"({"judged": "complete", "thinned": {"broken": 1}})"}) {
    EXPECT_FALSE(facts_of(nlohmann::json::parse(text))) << text;
  }
}

}  // namespace
}  // namespace ckptfs::meta::formats

// Files of a few megabytes that would keep a careless reader busy for hours, or exhaust memory. The tests measure
// nothing: a reader that is not linear in its input does not finish within the suite's time limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "meta/formats/checkpoint.h"
#include "meta/formats/completeness.h"
#include "meta/formats/manifest.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/torch_file.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using std::string_literals::operator""s;
using testing::HasSubstr;

template <class T>
std::string little(T number) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &number, sizeof(T));
  return bytes;
}

std::string repeated(size_t count, const std::string& what) {
  std::string all;
  all.reserve(count * what.size());
  for (size_t at = 0; at < count; ++at) all += what;
  return all;
}

// --- pickles, built from opcodes (Python's Lib/pickletools.py)

std::string text(const std::string& text) { return "X" + little(static_cast<uint32_t>(text.size())) + text; }
std::string number(int32_t number) { return "J" + little(number); }
std::string tuple(const std::string& items) { return "(" + items + "t"; }
std::string list(const std::string& items) { return "](" + items + "e"; }
std::string dict(const std::string& pairs) { return "}(" + pairs + "u"; }
std::string kept(uint32_t slot, const std::string& value) { return value + "r" + little(slot); }
std::string again(uint32_t slot) { return "j" + little(slot); }
std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

// A tensor of one float, in the storage "0".
std::string tensor(const std::string& shape = number(1), const std::string& attributes = "") {
  const std::string storage =
      tuple(text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(1 << 20)) + "Q";
  const std::string made = "ctorch._utils\n_rebuild_tensor_v2\n" +
                           tuple(storage + number(0) + tuple(shape) + tuple(shape) + "\x89" + "N") + "R";
  if (attributes.empty()) return made;
  return "ctorch._utils\n_rebuild_parameter_with_state\n" + tuple(made + "\x89" + "N" + attributes) + "R";
}

// --- files of torch.save: a zip of stored entries

std::string entry_fields(const std::string& name, size_t size) {
  return little<uint16_t>(20) + little<uint16_t>(0) + little<uint16_t>(0) + little<uint32_t>(0) + little<uint32_t>(0) +
         little(static_cast<uint32_t>(size)) + little(static_cast<uint32_t>(size)) +
         little(static_cast<uint16_t>(name.size())) + little<uint16_t>(0);
}

std::string torch_file(const std::string& pickle) {
  std::string zip, directory;
  const std::vector<std::pair<std::string, std::string>> entries{{"archive/data.pkl", pickle},
                                                                 {"archive/data/0", std::string(4 << 20, 'f')}};
  for (const auto& [name, content] : entries) {
    const auto offset = static_cast<uint32_t>(zip.size());
    zip += "PK\3\4" + entry_fields(name, content.size()) + name + content;
    directory += "PK\1\2" + little<uint16_t>(20) + entry_fields(name, content.size()) + little<uint16_t>(0) +
                 little<uint16_t>(0) + little<uint16_t>(0) + little<uint32_t>(0) + little(offset) + name;
  }
  const auto count = static_cast<uint16_t>(entries.size());
  return zip + directory + "PK\5\6" + little<uint32_t>(0) + little(count) + little(count) +
         little(static_cast<uint32_t>(directory.size())) + little(static_cast<uint32_t>(zip.size())) +
         little<uint16_t>(0);
}

TensorMap deepspeed(const std::string& model, const std::string& optimizer, unsigned stage) {
  StepInMemory step;
  step.add(stage == 3 ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt", torch_file(model));
  step.add("zero_pp_rank_0_mp_rank_00_optim_states.pt", torch_file(optimizer));
  return read_checkpoint(step);
}

TensorMap weights(const std::string& root) {
  StepInMemory step;
  step.add("pytorch_model.bin", torch_file(pickle(root)));
  return read_checkpoint(step);
}

constexpr size_t kMany = 50000;

std::string model_of(size_t groups) {
  return pickle(dict(text("param_shapes") + list(kept(1, "}") + repeated(groups - 1, again(1))) +
                     text("dp_world_size") + number(1)));
}

TEST(Hostile, ManyGroupsAndManyStatesOfThem) {
  const std::string states = dict(repeated(2 * kMany, "NN"));
  const TensorMap second = deepspeed(
      model_of(kMany),
      pickle(dict(text("optimizer_state_dict") + dict(text("zero_stage") + number(2) + text("partition_count") +
                                                      number(1) + text("single_partition_of_fp32_groups") +
                                                      list(kept(1, tensor()) + repeated(kMany - 1, again(1))) +
                                                      text("base_optimizer_state") + dict(text("state") + states)))),
      2);
  EXPECT_TRUE(second.parameters.empty());
  const TensorMap third = deepspeed(
      model_of(kMany),
      pickle(dict(text("optimizer_state_dict") +
                  dict(text("zero_stage") + number(3) + text("fp32_flat_groups") + list(repeated(kMany, "N")) +
                       text("optimizer_state_dict") + dict(text("state") + states)))),
      3);
  EXPECT_TRUE(third.parameters.empty());
  EXPECT_LE(third.problems.size(), kMostProblems);
}

// All tensors share one large value. A careless reader would walk it for each of them.
TEST(Hostile, OneLargeValueInManyPlaces) {
  const std::string ids = dict(repeated(kMany, text("k") + "N"));
  const std::string shape = repeated(kMany, number(1));
  for (const std::string& shared : {tensor(number(1), ids), tensor(shape)}) {
    const TensorMap map = deepspeed(
        model_of(kMany),
        pickle(dict(text("optimizer_state_dict") + dict(text("zero_stage") + number(3) + text("fp32_flat_groups") +
                                                        list(kept(1, shared) + repeated(kMany - 1, again(1)))))),
        3);
    EXPECT_TRUE(map.parameters.empty());
  }
}

TEST(Hostile, ALongNameInManyPlaces) {
  const std::string name(1 << 20, 'n');
  const TensorMap map = weights(dict(kept(1, text(name)) + kept(2, tensor()) + repeated(kMany, again(1) + again(2))));
  EXPECT_TRUE(map.parameters.empty());
  size_t told = 0;
  for (const Problem& problem : map.problems) told += problem.reason.size();
  EXPECT_LT(told, size_t{1} << 20);
  const std::string tied = dict(kept(1, text(name)) + again(1) + repeated(kMany, again(1) + again(1)));
  EXPECT_TRUE(deepspeed(pickle(dict(text("shared_params") + tied)), pickle("}"), 3).tied.empty());
}

TEST(Hostile, MoreTensorsThanThereIsRoomFor) {
  const TensorMap map =
      weights(dict(kept(1, text("w")) + kept(2, tensor()) + repeated(4 * kMany, again(1) + again(2))));
  ASSERT_FALSE(map.problems.empty());
  EXPECT_EQ(map.problems.front().file, "pytorch_model.bin");
  EXPECT_THAT(map.problems.front().reason, HasSubstr("more tensors"));
  const std::string shapes =
      dict(kept(1, text("w")) + kept(2, tuple(number(1))) + repeated(kMany, again(1) + again(2)));
  const TensorMap large =
      deepspeed(pickle(dict(text("param_shapes") + list(kept(3, shapes) + repeated(kMany, again(3))))), pickle("}"), 3);
  EXPECT_TRUE(large.parameters.empty());
  ASSERT_FALSE(large.problems.empty());
  EXPECT_THAT(large.problems.back().reason, HasSubstr("more tensors"));
}

TEST(Hostile, AHeaderOfMoreTensorsThanAnyModelHas) {
  std::string header = "{";
  for (size_t at = 0; at < 4 * kMany; ++at) {
    header += (at == 0 ? "\"" : ",\"") + std::to_string(at) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  }
  header += "}";
  StepInMemory step;
  step.add("model.safetensors", little<uint64_t>(header.size()) + header);
  step.add("config.json", "{}");
  const TensorMap map = read_checkpoint(step);
  EXPECT_TRUE(map.parameters.empty());
  ASSERT_EQ(map.problems.size(), 1U);
  EXPECT_EQ(map.problems[0].file, "model.safetensors");
  EXPECT_THAT(map.problems[0].reason, HasSubstr("more than"));
}

// Each kind of JSON file in a step, nested as deep as a file can be.
TEST(Hostile, DeepJson) {
  constexpr size_t deep = 200000;
  const std::string nested = std::string(deep, '[') + std::string(deep, ']');
  const std::string objects = repeated(deep, R"({"a":)") + "1" + std::string(deep, '}');
  for (const std::string& json : {nested, objects, R"({"weight_map":)" + nested + "}", R"({"files":)" + objects + "}",
                                  R"({"log_history":)" + nested + R"(,"global_step":1})"}) {
    StepInMemory step;
    step.add("trainer_state.json", json);
    step.add("config.json", json);
    step.add("model.safetensors.index.json", json);
    step.add("ckptfs.ds_ids.json", json);
    step.add("model.safetensors", little<uint64_t>(json.size()) + json);
    const TensorMap map = read_checkpoint(step);
    EXPECT_TRUE(map.parameters.empty());
    EXPECT_FALSE(map.problems.empty());
    EXPECT_EQ(judge_completeness(step, map).completeness, Completeness::unknown);
    const auto manifest = parse_manifest(json);
    ASSERT_FALSE(manifest);
    EXPECT_THAT(manifest.error().errno_value(), testing::AnyOf(EFBIG, EBADMSG));
  }
}

// A step with file names only; no file can be opened.
class NamesOfStep : public StepFiles {
 public:
  void add(const std::string& path) { files_.push_back({path, 0}); }
  const std::vector<File>& list() const override { return files_; }
  Result<io::ReadableFile> open(uint32_t) const override { return Error(EACCES); }

 private:
  std::vector<File> files_;
};

// A careless reader would search for each folder among all the others.
TEST(Hostile, ManyFolders) {
  NamesOfStep step;
  for (size_t at = 0; at < kMany; ++at) {
    const std::string folder = "global_step" + std::to_string(1000000 + at);
    step.add(folder + "/file");
    step.add(folder + "/ckptfs.rank00.json");
    step.add("partial-a1-" + folder + "/ckptfs.rank00.json");
  }
  step.add("global_step1/mp_rank_00_model_states.pt");
  const CompletenessJudgement judgement = judge_completeness(step, read_checkpoint(step));
  EXPECT_EQ(judgement.completeness, Completeness::unknown) << judgement.reason;
}

// Adds the same file under many names, as hard links would. Each is within all bounds.
void add_many_states(StepInMemory& step) {
  constexpr int32_t kRanks = 40;
  const std::string model = dict(text("param_shapes") + list("}") + text("dp_world_size") + number(kRanks));
  const std::string states = dict(text("zero_stage") + number(3) + text("more") + list(repeated(kMany, "N")));
  const std::string zip = torch_file(pickle(dict(text("optimizer_state_dict") + states)));
  step.add("zero_pp_rank_0_mp_rank_00_model_states.pt", torch_file(pickle(model)));
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    step.add("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt", zip);
  }
}

void add_many_headers(StepInMemory& step) {
  const std::string header = "{" + std::string(100000, ' ') + "}";
  step.add("trainer_state.json", R"({"global_step": 1})");
  for (size_t at = 0; at < 100; ++at) {
    step.add(std::to_string(at) + ".safetensors", little<uint64_t>(header.size()) + header);
  }
}

TEST(Hostile, AStepIsReadNoFurtherThanItsLimit) {
  for (const auto add : {add_many_states, add_many_headers}) {
    StepInMemory within;
    add(within);
    EXPECT_EQ(judge_completeness(within, read_checkpoint(within)).reason.find("MiB"), std::string::npos);
    StepInMemory step(io::ReadLimit(uint64_t{1} << 20));
    add(step);
    const TensorMap map = read_checkpoint(step);
    const CompletenessJudgement judgement = judge_completeness(step, map);
    EXPECT_EQ(judgement.completeness, Completeness::unknown);
    EXPECT_THAT(judgement.reason, HasSubstr("more than 1 MiB of its files"));
    EXPECT_TRUE(map.parameters.empty());
    ASSERT_TRUE(step.refused());
    EXPECT_EQ(step.refused()->errno_value(), EFBIG);
  }
}

TEST(Hostile, NothingIsReadWhenTheMountEnds) {
  const std::atomic<bool> stop{true};
  StepInMemory step(io::ReadLimit(UINT64_MAX, &stop));
  add_many_headers(step);
  EXPECT_EQ(judge_completeness(step, read_checkpoint(step)).completeness, Completeness::unknown);
  ASSERT_TRUE(step.refused());
  EXPECT_EQ(step.refused()->errno_value(), ECANCELED);
}

// A DCP step has such a zip for each chunk of each tensor.
TEST(Hostile, OfATorchFileLittleMoreThanItsPickleIsRead) {
  const io::Fd file = file_of(torch_file(pickle("}")));
  io::ReadLimit limit(1024);
  EXPECT_TRUE(TorchFile::open({file.get(), &limit}));
  EXPECT_FALSE(limit.reached());
}

}  // namespace
}  // namespace ckptfs::meta::formats

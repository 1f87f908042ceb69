#include "meta/formats/rank_pickles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using testing::HasSubstr;

// What torch 2.15 wrote with two ranks (tests/fuzz/corpus/checkpoint; tests/fuzz/checkpoint_fuzzer.cc explains the
// layout).
std::vector<std::string> saved_by_two(const std::string& sample) {
  const auto content = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/checkpoint/" + sample);
  EXPECT_TRUE(content) << content.error().message();
  const std::string& bytes = content.value();
  const size_t length = static_cast<uint8_t>(bytes[1]) | static_cast<size_t>(static_cast<uint8_t>(bytes[2])) << 8;
  return {bytes.substr(5, length), bytes.substr(5 + length)};
}

std::string path_of(const std::string& folder, int rank, int ranks = 2) {
  return folder + "model_world_size_" + std::to_string(ranks) + "_rank_" + std::to_string(rank) + ".pt";
}

std::vector<float> floats(const StepFiles& step, const Tensor& tensor) {
  std::string bytes;
  for (const Piece& piece : tensor.pieces)
    bytes += step.read(piece.file, 1 << 20).value().substr(piece.offset, piece.size);
  std::vector<float> found(bytes.size() / sizeof(float));
  std::memcpy(found.data(), bytes.data(), bytes.size());
  return found;
}

std::vector<float> counted(size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.F);
  return numbers;
}

// "rows" of 5 x 3 is cut by rows, "columns" of 4 x 6 by columns; "same" and "plain" are whole in both.
TEST(RankPickles, DTensorsAreJoined) {
  const auto files = saved_by_two("rank_pickles");
  StepInMemory step;
  step.add(path_of("actor/", 1), files[1]);
  step.add(path_of("actor/", 0), files[0]);
  const TensorMap map = read_rank_pickles(step);
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  ASSERT_EQ(map.parameters.size(), 4U);
  EXPECT_EQ(floats(step, find(map, "rows").states.at(kParam)), counted(15));
  EXPECT_EQ(find(map, "columns").states.at(kParam).shape, (Shape{4, 6}));
  EXPECT_EQ(floats(step, find(map, "columns").states.at(kParam)), counted(24));
  EXPECT_EQ(find(map, "same").states.at(kParam).dtype, Dtype::bfloat16);
  EXPECT_EQ(find(map, "plain").states.at(kParam).dtype, Dtype::int64);
}

TEST(RankPickles, ShardedTensorsAreJoined) {
  const auto files = saved_by_two("rank_pickles_sharded");
  StepInMemory step;
  for (const int rank : {0, 1}) step.add(path_of("", rank), files[static_cast<size_t>(rank)]);
  const TensorMap map = read_rank_pickles(step);
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  EXPECT_EQ(floats(step, find(map, "weight").states.at(kParam)), counted(15));
  EXPECT_EQ(floats(step, find(map, "bias").states.at(kParam)), counted(5));
}

TEST(RankPickles, NothingIsJoinedOfRanksThatAreNotThere) {
  const auto files = saved_by_two("rank_pickles");
  StepInMemory lacking;
  lacking.add(path_of("actor/", 0), files[0]);
  ASSERT_EQ(read_rank_pickles(lacking).problems.size(), 1U);
  EXPECT_EQ(read_rank_pickles(lacking).problems.front().kind, Problem::Kind::missing);
  EXPECT_TRUE(read_rank_pickles(lacking).parameters.empty());
  StepInMemory twice;  // one rank's part for both: the rows overlap, or are too few
  for (const int rank : {0, 1}) twice.add(path_of("actor/", rank), files[0]);
  const TensorMap map = read_rank_pickles(twice);
  ASSERT_FALSE(map.problems.empty());
  EXPECT_THAT(map.problems.front().reason, HasSubstr("rows"));
}

// A second model is not the model.
TEST(RankPickles, OfTwoModels) {
  const auto files = saved_by_two("rank_pickles");
  StepInMemory step;
  for (const int rank : {0, 1}) step.add(path_of("actor/", rank), files[static_cast<size_t>(rank)]);
  for (const int rank : {0, 1}) step.add(path_of("critic/", rank), files[static_cast<size_t>(rank)]);
  const TensorMap map = read_rank_pickles(step);
  EXPECT_EQ(find(map, "rows").kind, Parameter::Kind::trained);
  EXPECT_EQ(find(map, "critic/rows").kind, Parameter::Kind::other);
}

TEST(RankPickles, OfTwoNumbersOfRanks) {
  const auto files = saved_by_two("rank_pickles");
  StepInMemory step;
  for (const int rank : {0, 1}) step.add(path_of("actor/", rank), files[static_cast<size_t>(rank)]);
  step.add(path_of("actor/", 0, 1), files[0]);
  EXPECT_FALSE(read_rank_pickles(step).problems.empty());
}

TEST(RankPickles, Names) {
  const auto name = parse_rank_pickle("actor/extra_state_world_size_16_rank_3.pt");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->folder, "actor/");
  EXPECT_EQ(name->what, "extra_state");
  EXPECT_EQ(name->ranks, 16U);
  EXPECT_EQ(name->rank, 3U);
  for (const char* path :
       {"model_world_size_2_rank_2.pt", "model_world_size_0_rank_0.pt", "model_world_size_2_rank_.pt",
        "other_world_size_2_rank_0.pt", "model_world_size_99999999999_rank_0.pt", "model_world_size_2_rank_0.pth"})
    EXPECT_FALSE(parse_rank_pickle(path)) << path;
}

}  // namespace
}  // namespace ckptfs::meta::formats

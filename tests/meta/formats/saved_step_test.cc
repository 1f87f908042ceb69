#include "meta/formats/saved_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "meta/formats/checkpoint.h"
#include "meta/formats/manifest.h"
#include "meta/formats/safetensors.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A tensor in a rank's file: bytes whose values are `values`, and what it is a piece of.
struct InFile {
  std::string name;
  Shape shape;
  std::string values;
  std::optional<SavedPiece> piece;
  Dtype dtype = Dtype::uint8;
};

class SavedStep {
 public:
  SavedStep& rank(const std::vector<InFile>& tensors) {
    SafetensorsHeader header;
    std::string data;
    for (const InFile& tensor : tensors) {
      header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0, tensor.values.size()});
      if (tensor.piece) header.metadata[std::string(kPieceKey) + tensor.name] = piece_text(*tensor.piece);
      data += tensor.values;
    }
    return file(safetensors_header(header) + data);
  }
  SavedStep& file(const std::string& content) {
    const std::string name = "rank" + std::to_string(ranks_++) + ".safetensors";
    step_.add(name, content);
    return *this;
  }
  const StepFiles& files() {
    for (unsigned rank = 0; rank < ranks_; ++rank)
      step_.add(manifest_name(rank), manifest_text({"a1", rank, ranks_, {}}));
    return step_;
  }
  TensorMap read(const MapOptions& options = {}) { return read_checkpoint(files(), options); }
  std::string values(const Tensor& tensor) const {
    std::string bytes;
    for (const Piece& piece : tensor.pieces) {
      bytes += step_.read(piece.file, uint64_t{1} << 20).value().substr(piece.offset, piece.size);
    }
    return bytes;
  }

 private:
  StepInMemory step_;
  unsigned ranks_ = 0;
};

std::vector<std::string> names_of(const TensorMap& map) {
  std::vector<std::string> names;
  for (const Parameter& parameter : map.parameters) names.push_back(parameter.name);
  return names;
}

TEST(SavedStep, PiecesOfAllRanksAreJoined) {
  SavedStep step;
  step.rank({{"w", {2, 2}, "abef", SavedPiece{"w", {2, 4}, {0, 0}}}, {"own", {2}, "xy", {}}})
      .rank({{"w", {2, 2}, "cdgh", SavedPiece{"w", {2, 4}, {0, 2}}},
             {"flat", {3}, "012", SavedPiece{"flat", {3}, {0}}},
             {"own", {2}, "zz", {}}});
  const TensorMap map = step.read();
  EXPECT_THAT(names_of(map), ElementsAre("rank0/own", "rank1/own", "w", "flat"));
  ASSERT_EQ(map.problems.size(), 1U);  // "rank0/own" is no name of the model
  EXPECT_EQ(map.problems.front().kind, Problem::Kind::left_out);
  const Tensor& whole = find(map, "w").states.at(kParam);
  EXPECT_EQ(whole.shape, (Shape{2, 4}));
  EXPECT_EQ(step.values(whole), "abcdefgh");
  EXPECT_EQ(step.values(find(map, "flat").states.at(kParam)), "012");
}

// A save by fewer ranks replaces the files of these; those of the other ranks stay.
TEST(SavedStep, FilesOfAnEarlierSaveByMoreRanksDoNotCount) {
  StepInMemory step;
  const auto add = [&step](const std::string& name, const SavedPiece& piece, const std::string& values) {
    SafetensorsHeader header;
    header.tensors.push_back({"w", Dtype::uint8, {values.size()}, 0, values.size()});
    header.metadata[std::string(kPieceKey) + "w"] = piece_text(piece);
    step.add(name, safetensors_header(header) + values);
  };
  add("rank00.safetensors", {"w", {4}, {0}}, "abcd");
  add("rank01.safetensors", {"w", {4}, {2}}, "zz");
  step.add(manifest_name(0), manifest_text({"a2", 0, 1, {}}));
  const TensorMap map = read_checkpoint(step);
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  ASSERT_EQ(map.parameters.size(), 1U);
  EXPECT_EQ(map.parameters[0].states.at(kParam).pieces.size(), 1U);
}

// A flat range of a tensor lies in several boxes of one file.
TEST(SavedStep, SeveralPiecesInOneFile) {
  SavedStep step;
  step.rank({{"w", {1, 2}, "cd", SavedPiece{"w", {3, 4}, {0, 2}}},
             {"w#1", {1, 4}, "efgh", SavedPiece{"w", {3, 4}, {1, 0}}},
             {"w#2", {1, 1}, "i", SavedPiece{"w", {3, 4}, {2, 0}}}})
      .rank({{"w", {1, 2}, "ab", SavedPiece{"w", {3, 4}, {0, 0}}},
             {"w#1", {1, 3}, "jkl", SavedPiece{"w", {3, 4}, {2, 1}}}});
  const TensorMap map = step.read();
  EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
  EXPECT_EQ(step.values(find(map, "w").states.at(kParam)), "abcdefghijkl");
}

TEST(SavedStep, WhatDoesNotFitTogetherIsAProblemOfThatTensor) {
  const InFile first{"w", {2, 2}, "abef", SavedPiece{"w", {2, 4}, {0, 0}}};
  const struct {
    InFile second;
    const char* reason;
  } cases[] = {
      {{"w", {2, 1}, "cg", SavedPiece{"w", {2, 4}, {0, 2}}}, "gap"},
      {{"w", {2, 3}, "bcdfgh", SavedPiece{"w", {2, 4}, {0, 1}}}, "overlap"},
      {{"w", {2, 2}, "cdgh", SavedPiece{"w", {2, 4}, {0, 3}}}, "outside"},
      {{"w", {2, 2}, "cdgh", SavedPiece{"w", {2, 4}, {0, UINT64_MAX}}}, "outside"},
      {{"w", {4}, "cdgh", SavedPiece{"w", {8}, {0}}}, "disagree"},
      {{"w", {2, 2}, "cdghcdgh", SavedPiece{"w", {2, 4}, {0, 2}}, Dtype::int16}, "disagree"},
      {{"w", {2, 2}, "cdgh", SavedPiece{"w", {4}, {2}}}, "disagree"},
      {{"v", {2}, "cd", SavedPiece{"v", {uint64_t{1} << 40, uint64_t{1} << 40}, {0, 0}}}, "shape"},
  };
  for (const auto& [second, reason] : cases) {
    SavedStep step;
    step.rank({first, {"good", {1}, "g", SavedPiece{"good", {1}, {0}}}}).rank({second});
    const TensorMap map = step.read();
    EXPECT_THAT(names_of(map), ElementsAre("good")) << reason;
    ASSERT_FALSE(map.problems.empty()) << reason;
    std::string all;
    for (const Problem& problem : map.problems) all += problem.reason + "; ";
    EXPECT_THAT(all, HasSubstr(reason));
    EXPECT_THAT(all, HasSubstr("w: "));
  }
}

TEST(SavedStep, EntriesThatAreNoneAreProblems) {
  for (const char* const text :
       {"", "5", "{}", "[]", R"({"of":"w","shape":[1]})", R"({"of":"","shape":[1],"offsets":[0]})",
        R"({"of":"w","shape":[-1],"offsets":[0]})", R"({"of":"w","shape":[1,2],"offsets":[0]})"}) {
    SafetensorsHeader header;
    header.tensors.push_back({"w", Dtype::uint8, {1}, 0, 1});
    header.metadata["ckptfs.piece:w"] = text;
    SavedStep step;
    step.file(safetensors_header(header) + "x");
    const TensorMap map = step.read();
    EXPECT_TRUE(map.parameters.empty()) << text;
    ASSERT_FALSE(map.problems.empty()) << text;
    EXPECT_THAT(map.problems.front().reason, HasSubstr("w: what it is a piece of")) << text;
  }
}

// {"model": ..., "optimizer": ...}: a view that called all of it the model would hold Adam's moments, too.
TEST(SavedStep, AModelBesideItsOptimizer) {
  for (const std::string of : {"optimizer.", "optimizer.state.", "optim.", "optimizer_0."}) {
    SavedStep step;
    step.rank({{"model.0.weight", {2}, "ww", {}},
               {"model.model.w", {1}, "v", {}},
               {of + "0.weight.exp_avg", {2}, "mm", {}},
               {of + "0.weight.step", {}, "s", {}},
               {of + "7.exp_avg", {1}, "o", {}},
               {"optimizer.0.master", {2}, "wm", {}},
               {"rng", {1}, "r", {}}});
    const TensorMap map = step.read();
    EXPECT_TRUE(map.problems.empty()) << map.problems.front().reason;
    const Parameter& weight = find(map, "0.weight");
    EXPECT_EQ(weight.kind, Parameter::Kind::trained);
    EXPECT_EQ(step.values(weight.states.at(kParam)), "ww");
    EXPECT_EQ(step.values(weight.states.at("exp_avg")), "mm");
    EXPECT_EQ(weight.states.count("step"), 1U);
    EXPECT_EQ(find(map, "model.w").kind, Parameter::Kind::trained);
    EXPECT_EQ(find(map, of + "7.exp_avg").kind, Parameter::Kind::resume);
    EXPECT_EQ(find(map, "optimizer.0.master").kind,
              Parameter::Kind::other);  // nothing tells that only a resume needs it
    EXPECT_EQ(find(map, "rng").kind, Parameter::Kind::other);
    // A load takes the names by which they were saved.
    EXPECT_THAT(names_of(step.read({.sorts_saved = false})),
                ElementsAre("model.0.weight", "model.model.w", of + "0.weight.exp_avg", of + "0.weight.step",
                            of + "7.exp_avg", "optimizer.0.master", "rng"));
  }
}

// Most models of Hugging Face have names below "model", and beside it.
TEST(SavedStep, AModelWhoseOwnNamesBeginWithModel) {
  SavedStep step;
  step.rank({{"model.embed.weight", {1}, "e", {}}, {"lm_head.weight", {1}, "h", {}}});
  const TensorMap map = step.read();
  EXPECT_TRUE(map.problems.empty());
  EXPECT_THAT(names_of(map), ElementsAre("model.embed.weight", "lm_head.weight"));
}

TEST(SavedStep, AnOptimizerOfNoKnownModelIsNotPassedForTheModel) {
  SavedStep step;
  step.rank({{"net.w", {1}, "w", {}}, {"opt.w.exp_avg", {1}, "m", {}}});
  const TensorMap map = step.read();
  EXPECT_EQ(map.parameters.size(), 2U);
  ASSERT_EQ(map.problems.size(), 1U);
  EXPECT_EQ(map.problems.front().kind, Problem::Kind::left_out);
  EXPECT_THAT(map.problems.front().reason, HasSubstr("opt.w.exp_avg is of an optimizer"));
  EXPECT_TRUE(step.read({.sorts_saved = false}).problems.empty());
}

TEST(SavedStep, APieceAndATensorOfOneName) {
  SavedStep step;
  step.rank({{"w", {1}, "a", {}}, {"piece", {1}, "b", SavedPiece{"w", {1}, {0}}}});
  const TensorMap map = step.read();
  EXPECT_THAT(names_of(map), ElementsAre("w"));
  ASSERT_EQ(map.problems.size(), 1U);
  EXPECT_THAT(map.problems.front().reason, HasSubstr("twice"));
}

// Another program's entries do not matter, however long they are.
TEST(SavedStep, OtherMetadataIsSkipped) {
  SafetensorsHeader header;
  header.tensors.push_back({"w", Dtype::uint8, {1}, 0, 1});
  header.metadata["other"] = std::string(100000, 'x');
  SavedStep step;
  step.file(safetensors_header(header) + "x");
  EXPECT_THAT(names_of(step.read()), ElementsAre("w"));
  header.metadata["ckptfs.piece:w"] = std::string(100000, 'x');
  SavedStep longer;
  longer.file(safetensors_header(header) + "x");
  EXPECT_THAT(longer.read().problems.front().reason, HasSubstr("too long entries"));
}

// Columns of many rows would be more pieces than are read of one step. Who asks for boxes gets boxes.
TEST(SavedStep, BoxesStayBoxesIfAskedFor) {
  SavedStep step;
  step.rank({{"w", {2, 2}, "abef", SavedPiece{"w", {2, 4}, {0, 0}}}})
      .rank({{"w", {2, 2}, "cdgh", SavedPiece{"w", {2, 4}, {0, 2}}}});
  const TensorMap map = read_saved_step(step.files(), {.runs = 1, .boxes = true});
  ASSERT_TRUE(map.problems.empty()) << map.problems.front().reason;
  EXPECT_EQ(find(map, "w").states.at(kParam).boxes.size(), 2U);
}

// As a million of them would be with the limits of the daemon.
TEST(SavedStep, MorePiecesThanThereIsRoomFor) {
  constexpr uint64_t kPieces = 5000;
  SafetensorsHeader header;
  for (uint64_t at = 0; at < kPieces; ++at) {
    const std::string name = std::to_string(at);
    header.tensors.push_back({name, Dtype::uint8, {1}, 0, 1});
    header.metadata["ckptfs.piece:" + name] = piece_text({"w", {kPieces}, {at}});
  }
  SavedStep step;
  step.file(safetensors_header(header) + std::string(kPieces, 'x'));
  const StepFiles& files = step.files();
  EXPECT_THAT(names_of(read_saved_step(files)), ElementsAre("w"));
  const TensorMap map = read_saved_step(files, {.bytes = uint64_t{256} << 10});
  EXPECT_TRUE(map.parameters.empty());
  ASSERT_EQ(map.problems.size(), 1U);
  EXPECT_EQ(map.problems.front().reason, kTooManyTensors);
}

}  // namespace
}  // namespace ckptfs::meta::formats

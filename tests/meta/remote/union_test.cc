#include "meta/remote/union.h"

#include <gtest/gtest.h>

#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote {
namespace {

using io::testing::ScratchFolder;
using testing::BuiltPart, testing::build_part, testing::bytes_for, testing::new_push;

Part build_one(const std::vector<BuiltPart>& built, uint32_t slot, const std::string& folder) {
  const auto slots = static_cast<uint32_t>(built.size());
  return build_part(new_push("global_step5", slot), built[slot], folder, nullptr, slots).value();
}

class UnionTest : public ::testing::Test {
 protected:
  const std::vector<const Part*>& build(const std::vector<BuiltPart>& built) {
    parts_.clear();
    pointers_.clear();
    for (uint32_t slot = 0; slot < built.size(); ++slot) {
      parts_.push_back(build_one(built, slot, folder_.path()));
    }
    for (const Part& part : parts_) pointers_.push_back(&part);
    return pointers_;
  }
  // "path" of slot 0, "path 1" of others.
  std::vector<std::string> united(const std::vector<BuiltPart>& built) {
    whole_ = unite(build(built)).value();
    std::vector<std::string> found;
    for (const UnionEntry& one : whole_.entries) {
      found.push_back(one.path + (one.slot == 0 ? "" : " " + std::to_string(one.slot)));
    }
    return found;
  }
  std::string refused(const std::vector<BuiltPart>& built) {
    const auto whole = unite(build(built));
    EXPECT_ERRNO(EEXIST, whole);
    return whole ? "" : whole.error().message();
  }
  // What a node holds of a step: its ranks' files, and swap state by local rank.
  static BuiltPart node(const std::vector<unsigned>& ranks, const std::string& below = "") {
    BuiltPart part;
    for (size_t local = 0; local < ranks.size(); ++local) {
      const std::string rank = std::to_string(ranks[local]);
      part.file(below + "bf16_zero_pp_rank_" + rank + "_mp_rank_00_optim_states.pt", "optimizer " + rank);
      part.file(below + "zero_pp_rank_" + rank + "_mp_rank_00_model_states.pt", "model " + rank);
      part.file(below + "offloaded_tensors/rank0" + std::to_string(local) + "/0_6.tensor.swp", "swap " + rank);
    }
    return part;
  }

  const ScratchFolder folder_;
  std::vector<Part> parts_;
  std::vector<const Part*> pointers_;
  Union whole_;
};

TEST_F(UnionTest, OfOneSlotIsThePart) {
  EXPECT_EQ(united({BuiltPart().file("a", "x").file("offloaded_tensors/rank00/f", "x").link("l", "a")}),
            (std::vector<std::string>{"", "a", "l", "offloaded_tensors", "offloaded_tensors/rank00",
                                      "offloaded_tensors/rank00/f"}));
}

TEST_F(UnionTest, EqualFilesCountOnce) {
  const std::string large = bytes_for(2 * kChunkBytes + 1, 3);
  EXPECT_EQ(united({BuiltPart().file("d/a", large).file("b", "x"), BuiltPart().file("d/a", large).file("d/c", "y"),
                    BuiltPart().file("c", "")}),
            (std::vector<std::string>{"", "b", "c 2", "d", "d/a", "d/c 1"}));
  EXPECT_TRUE(whole_.notes.empty());
}

TEST_F(UnionTest, TheLowestSlotsFolderCounts) {
  BuiltPart one = BuiltPart().folder("d"), other = BuiltPart().folder("d");
  one.entries["d"].first.mode = 0700;
  EXPECT_EQ(united({one, other}), (std::vector<std::string>{"", "d"}));
  EXPECT_EQ(parts_[whole_.entries[1].slot].entries()[whole_.entries[1].index].mode, 0700U);
}

TEST_F(UnionTest, OtherDifferencesAreRefusedByName) {
  std::string large = bytes_for(2 * kChunkBytes, 3);
  const BuiltPart one = BuiltPart().file("d/a", large);
  large.back() ^= 1;
  EXPECT_EQ(refused({BuiltPart(), one, BuiltPart().file("d/a", large)}),
            "d/a: slots 1 and 2 hold different files of this name");
  EXPECT_EQ(refused({one, BuiltPart().file("d/a", "x")}), "d/a: slots 0 and 1 hold different files of this name");
  EXPECT_EQ(refused({BuiltPart().file("a", "x"), BuiltPart().folder("a")}),
            "a: slots 0 and 1 hold different kinds of this name");
  EXPECT_EQ(refused({BuiltPart().link("a", "x"), BuiltPart().link("a", "y")}),
            "a: slots 0 and 1 hold links to different places");
  EXPECT_EQ(united({BuiltPart().link("a", "x"), BuiltPart().link("a", "x")}), (std::vector<std::string>{"", "a"}));
}

TEST_F(UnionTest, OfSomeFilesTheLowestSlotsCounts) {
  for (const char* path : {"trainer_state.json", "sub/config.json", "training_args.bin", "mp_rank_00_model_states.pt",
                           "global_step5/mp_rank_01_model_states.pt"}) {
    united(
        {BuiltPart(), BuiltPart().file(path, "one"), BuiltPart().file(path, "two"), BuiltPart().file(path, "three")});
    ASSERT_EQ(whole_.notes.size(), 1U) << path;
    EXPECT_EQ(whole_.notes[0],
              std::string(path) + ": slots 1 and 2 hold different files of this name; that of slot 1 counts");
    EXPECT_EQ(whole_.entries.back().slot, 1U);
  }
  for (const char* path :
       {"zero_pp_rank_0_mp_rank_00_model_states.pt", "mp_rank_00_optim_states.pt", "rng_state.pth"}) {
    refused({BuiltPart().file(path, "one"), BuiltPart().file(path, "two")});
  }
}

TEST_F(UnionTest, NotesAreBounded) {
  BuiltPart one, other;
  for (int number = 0; number < 150; ++number) {
    one.file(std::to_string(number) + ".json", "one");
    other.file(std::to_string(number) + ".json", "other");
  }
  united({one, other});
  EXPECT_EQ(whole_.notes.size(), 101U);
}

TEST_F(UnionTest, LocalRanksBecomeGlobalOnes) {
  for (const std::string below : {"", "global_step5/"}) {
    united({node({0, 1}, below), node({3, 12}, below)
                                     .file(below + "offloaded_params/rank00/a", "x")
                                     .file(below + "offloaded_params/rank01/a", "y")});
    std::vector<std::string> swap;
    for (const UnionEntry& one : whole_.entries) {
      if (one.path.find(".swp") != std::string::npos || one.path.ends_with("/a"))
        swap.push_back(one.path.substr(below.size()));
    }
    EXPECT_EQ(swap, (std::vector<std::string>{
                        "offloaded_params/rank03/a", "offloaded_params/rank12/a",
                        "offloaded_tensors/rank00/0_6.tensor.swp", "offloaded_tensors/rank01/0_6.tensor.swp",
                        "offloaded_tensors/rank03/0_6.tensor.swp", "offloaded_tensors/rank12/0_6.tensor.swp"}));
    for (size_t at = 1; at < whole_.entries.size(); ++at)
      EXPECT_LT(whole_.entries[at - 1].path, whole_.entries[at].path);
  }
}

TEST_F(UnionTest, GlobalRanksStayWhatTheyAre) {
  BuiltPart other;
  other.file("zero_pp_rank_1_mp_rank_00_model_states.pt", "m").file("offloaded_tensors/rank01/a", "x");
  united({node({0}), other});
  EXPECT_EQ(whole_.entries.back().path, "zero_pp_rank_1_mp_rank_00_model_states.pt");
  EXPECT_EQ(united({node({0}), other})[5], "offloaded_tensors/rank01 1");
}

TEST_F(UnionTest, RanksThatDoNotMatchAreRefused) {
  BuiltPart more = node({2, 3});
  more.file("offloaded_tensors/rank02/a", "x");
  EXPECT_NE(refused({node({0, 1}), more}).find("offloaded_tensors: slot 1 has 3 folders of ranks there, and 2 ranks"),
            std::string::npos);
  EXPECT_NE(refused({BuiltPart().file("offloaded_tensors/rank00/a", "x"), BuiltPart()}).find("1 folders"),
            std::string::npos);
  EXPECT_EQ(united({BuiltPart().file("offloaded_tensors/rank00/a", "x")}).size(), 4U);  // one slot has no local ranks
}

TEST_F(UnionTest, DifferentAttemptsAreIncomplete) {
  BuiltPart one, other, none;
  one.save.attempt = "first";
  other.save.attempt = "second";
  const auto judged = [&](const std::vector<BuiltPart>& built) {
    united(built);
    return judge_union(pointers_, whole_);
  };
  EXPECT_EQ(judged({one, none, other}).completeness, formats::Completeness::incomplete);
  EXPECT_EQ(judged({one, none, other}).reason, "slots 0 and 2 hold different attempts of this step");
  EXPECT_NE(judged({one, none, one}).reason, judged({one, none, other}).reason);
}

}  // namespace
}  // namespace ckptfs::meta::remote

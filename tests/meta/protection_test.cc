// The table of what protects a step: which reasons hold, from what they protect, and what commands say.
#include "meta/steps/protection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptfs::meta {
namespace {

using formats::Completeness;
using testing::ElementsAre;
using testing::IsEmpty;

// Complete, and seen in the order of `seen`.
StepFacts step(uint64_t number, int64_t seen) {
  StepFacts facts;
  facts.tag = "step_" + std::to_string(number);
  facts.number = number;
  facts.seen = StoreTime(seen);
  facts.completeness = Completeness::complete;
  return facts;
}

Protections removal(const std::vector<StepFacts>& steps) { return find_protections(steps, {}); }

TEST(ProtectionTest, TheNewestInBothOrdersOfEachOwner) {
  std::vector<StepFacts> steps{step(1, 9), step(2, 2), step(3, 3), step(1, 1)};
  steps[3].owner = 7;
  EXPECT_THAT(removal(steps), ElementsAre(ElementsAre(Reason::newest), IsEmpty(), ElementsAre(Reason::newest),
                                          ElementsAre(Reason::newest)));
  steps[2].completeness = Completeness::weights;
  EXPECT_THAT(removal(steps)[1], ElementsAre(Reason::newest)) << "no training can resume from weights";
}

TEST(ProtectionTest, TheNewestOfEachRunThatLives) {
  const Process first{1, 10}, second{2, 20};
  std::vector<StepFacts> steps{step(1, 1), step(2, 2), step(100, 3), step(200, 4), step(3, 0)};
  steps[0].runs = steps[1].runs = {first};
  steps[2].runs = {second};
  steps[3].runs = {second, first};
  EXPECT_THAT(removal(steps)[1], IsEmpty()) << "its run has saved a later step";
  steps[3].runs = {second};
  EXPECT_THAT(removal(steps), ElementsAre(IsEmpty(), ElementsAre(Reason::newest_of_run), IsEmpty(),
                                          ElementsAre(Reason::newest), IsEmpty()));
  steps[1].runs = {first, {3, 30}};
  EXPECT_THAT(removal(steps)[1], ElementsAre(Reason::newest_of_run)) << "once, however many processes a run has";
  steps[1].completeness = Completeness::incomplete;
  EXPECT_THAT(removal(steps)[0], ElementsAre(Reason::newest_of_run));
}

TEST(ProtectionTest, ARunThatAddsANoteToANewerStepKeepsItsOwn) {
  const Process run{1, 10};
  std::vector<StepFacts> steps{step(3, 1), step(7, 2), step(20, 3)};
  steps[0].runs = steps[0].savers = steps[1].runs = {run};
  EXPECT_THAT(removal(steps), ElementsAre(ElementsAre(Reason::newest_of_run), ElementsAre(Reason::newest_of_run),
                                          ElementsAre(Reason::newest)));
  steps[1].savers = {run};
  EXPECT_THAT(removal(steps)[0], IsEmpty()) << "it has saved the newer one";
}

TEST(ProtectionTest, TheNewestThatWasSavedHereWhateverWasCopiedInSince) {
  std::vector<StepFacts> steps{step(10, 1), step(20, 2), step(99, 3)};
  steps[0].saved = steps[1].saved = true;
  EXPECT_THAT(removal(steps), ElementsAre(IsEmpty(), ElementsAre(Reason::newest_saved), ElementsAre(Reason::newest)));
  steps[2].saved = true;
  EXPECT_THAT(removal(steps), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(Reason::newest)));
}

TEST(ProtectionTest, TheNewestWithMoreThanSwapStateWhateverSavesAloneCameSince) {
  std::vector<StepFacts> steps{step(10, 1), step(20, 2), step(30, 3), step(40, 4)};
  steps[2].swap_only = steps[3].swap_only = true;
  EXPECT_THAT(removal(steps),
              ElementsAre(IsEmpty(), ElementsAre(Reason::newest_resumable), IsEmpty(), ElementsAre(Reason::newest)));
  steps[3].swap_only = false;
  EXPECT_THAT(removal(steps), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), ElementsAre(Reason::newest)));
}

TEST(ProtectionTest, ATrainingGoesOnFromSwapStateOnlyIfThereIsNothingElse) {
  constexpr uint32_t kUser = 7, kOwner = 8;
  std::vector<StepFacts> steps{step(10, 1), step(20, 2), step(30, 3)};
  const auto newest = [&] { return newest_to_resume(steps, kUser, kOwner).value_or(99); };
  EXPECT_EQ(newest(), 99) << "of another user";
  steps[0].owner = kOwner;
  EXPECT_EQ(newest(), 0);
  steps[1].owner = steps[2].owner = kUser;
  EXPECT_EQ(newest(), 2);
  steps[1].saved = true;
  EXPECT_EQ(newest(), 1);
  steps[1].swap_only = steps[2].swap_only = true;
  EXPECT_EQ(newest(), 0) << "another user's that holds more";
  steps[0].completeness = Completeness::incomplete;
  EXPECT_EQ(newest(), 1);
}

TEST(ProtectionTest, WhatWasNewestWhileTheNewestIsSavedAgain) {
  std::vector<StepFacts> steps{step(1, 1), step(2, 2), step(3, 3)};
  steps[2].written_again = true;
  EXPECT_THAT(removal(steps), ElementsAre(IsEmpty(), ElementsAre(Reason::newest_before), ElementsAre(Reason::newest)));
  steps[0].written_again = true;
  steps[2].written_again = false;
  EXPECT_THAT(removal(steps), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(Reason::newest)));
}

TEST(ProtectionTest, EachFactIsAReasonAndTheyComeInTheOrderOfTheTable) {
  StepFacts facts = step(1, 1);
  facts.completeness = Completeness::unknown;
  facts.pinned = facts.latest = facts.best_model = facts.in_use = true;
  facts.out_of_reach = facts.unpushed = facts.elsewhere = true;
  EXPECT_THAT(removal({facts}).front(), ElementsAre(Reason::pinned, Reason::latest, Reason::best_model, Reason::in_use,
                                                    Reason::unknown, Reason::out_of_reach, Reason::unpushed));
  EXPECT_THAT(own_protections(facts, kSetAside),
              ElementsAre(Reason::pinned, Reason::latest, Reason::out_of_reach, Reason::elsewhere));
  EXPECT_THAT(own_protections(facts, kLose), ElementsAre(Reason::pinned, Reason::latest, Reason::best_model,
                                                         Reason::in_use, Reason::unknown, Reason::out_of_reach))
      << "whether it is held for a push, other steps tell";
  facts = step(1, 1);
  facts.untold = true;
  EXPECT_THAT(removal({facts, step(2, 2)}).front(), ElementsAre(Reason::unknown));
}

TEST(ProtectionTest, HoldUnpushedSaysHowMany) {
  std::vector<StepFacts> steps{step(1, 1), step(2, 2), step(3, 3), step(4, 4)};
  for (const size_t at : {0U, 1U, 2U}) steps[at].unpushed = true;
  const auto held = [&](std::optional<uint64_t> count) {
    const Protections found = find_protections(steps, count);
    return std::ranges::count(found, std::vector{Reason::unpushed});
  };
  EXPECT_EQ(held({}), 2);
  EXPECT_EQ(held(0), 0);
  EXPECT_EQ(held(9), 3);
}

TEST(ProtectionTest, EveryProtectionHasWords) {
  for (int at = 0; at <= static_cast<int>(Reason::min_free); ++at) {
    const auto reason = static_cast<Reason>(at);
    EXPECT_STRNE(name_of(reason), "");
    const bool protects = protects_from(reason, kLose) || protects_from(reason, kSetAside);
    EXPECT_EQ(words_of(reason) != nullptr, protects) << name_of(reason);
    EXPECT_EQ(protects, reason < Reason::keep_last) << name_of(reason);
  }
  EXPECT_STREQ(words_of(Reason::latest), "`latest` names it");
  EXPECT_STREQ(words_of(Reason::pinned, kSetAside), "it is pinned");
  EXPECT_STREQ(words_of(Reason::out_of_reach, kSetAside), words_of(Reason::out_of_reach));
}

}  // namespace
}  // namespace ckptfs::meta

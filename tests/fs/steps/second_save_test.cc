#include "fs/steps/step_judgement.h"

#include <gtest/gtest.h>

namespace ckptfs::fs {
namespace {

using meta::WallTime;
using meta::formats::Completeness;
using std::chrono::seconds;

// The step was whole at 10.
Completeness judge(int first_written, int oldest, bool by_run = true, Completeness own = Completeness::complete) {
  meta::LedgerEntry ledger;
  ledger.whole = WallTime(seconds(10));
  ledger.unfinished = true;
  ledger.by_run = by_run;
  const SaveTimes times{.newest = WallTime(seconds(99)),
                        .first_written = "model.safetensors",
                        .first_written_at = WallTime(seconds(first_written)),
                        .oldest = "optimizer.pt",
                        .oldest_at = WallTime(seconds(oldest))};
  return heed_second_save(times, ledger, {own, {}}).completeness;
}

TEST(SecondSave, UntilAllIsNewer) {
  EXPECT_EQ(judge(9, 8), Completeness::complete) << "notes only";
  EXPECT_EQ(judge(20, 8), Completeness::unknown);
  EXPECT_EQ(judge(20, 10), Completeness::unknown);
  EXPECT_EQ(judge(20, 19), Completeness::complete);
}

TEST(SecondSave, WhatIsAddedLeavesItAsItWas) {
  meta::LedgerEntry whole{.by_run = true, .whole = WallTime(seconds(10))};
  whole.writers.emplace_back().program = 2;
  const auto saved = [](int first_written, int last) {
    return SaveTimes{.newest = WallTime(seconds(99)),
                     .first_written_at = WallTime(seconds(first_written)),
                     .saved_at = WallTime(seconds(last))};
  };
  EXPECT_TRUE(is_as_it_was(saved(9, 10), whole, {Completeness::complete, {}}));
  EXPECT_FALSE(is_as_it_was(saved(11, 10), whole, {Completeness::complete, {}}));
  EXPECT_FALSE(is_as_it_was(saved(9, 11), whole, {Completeness::complete, {}}));
  EXPECT_FALSE(is_as_it_was(saved(9, 10), whole, {Completeness::unknown, {}}));
  EXPECT_FALSE(is_as_it_was(saved(9, 10), {}, {Completeness::complete, {}})) << "it was never whole";
  for (const auto& [program, wanted] : std::map<uint64_t, bool>{{0, false}, {1, true}, {2, false}}) {
    SaveTimes set_back = saved(9, 10);
    set_back.writers[program] = "__0_0.distcp";
    EXPECT_EQ(is_as_it_was(set_back, whole, {Completeness::complete, {}}), wanted) << program;
  }
}

TEST(SecondSave, OfAnotherRunOnly) {
  EXPECT_EQ(judge(20, 8, false), Completeness::complete);
  SaveTimes times{.first_written = "model.safetensors", .first_written_at = WallTime(seconds(20))};
  times.oldest = "optimizer.pt";
  EXPECT_EQ(heed_second_save(times, {.by_run = true}, {Completeness::complete, {}}).completeness,
            Completeness::complete)
      << "it was never whole";
}

TEST(SecondSave, WithAClockThatWasSetBack) {
  const SaveTimes times{.first_written = "model.safetensors",
                        .first_written_at = WallTime(seconds(9)),
                        .oldest = "optimizer.pt",
                        .oldest_at = WallTime(seconds(8))};
  const auto judge = [&times](bool set_back) {
    return heed_second_save(
        times, {.by_run = true, .again = WallTime(seconds(set_back ? 7 : 11)), .whole = WallTime(seconds(10))},
        {Completeness::complete, {}});
  };
  EXPECT_EQ(judge(false).completeness, Completeness::complete);
  EXPECT_EQ(judge(true).completeness, Completeness::unknown);
}

TEST(SecondSave, IsOfOneRun) {
  const auto writer = [](pid_t pid, unsigned run, bool is_command = false) {
    meta::StepWriter one{"boot pid:[1]", {pid, 10}, {}, is_command};
    one.program = static_cast<uint64_t>(pid);
    one.run = run;
    return one;
  };
  meta::LedgerEntry ledger{.writers = {writer(1, 0), writer(2, 0), writer(3, 0, true)}, .savers = {writer(4, 1)}};
  const auto judge = [&](const std::vector<uint64_t>& programs, Completeness own = Completeness::complete) {
    SaveTimes times{.first_written = "model.safetensors", .first_written_at = WallTime(seconds(20))};
    for (const uint64_t program : programs) times.writers[program] = "model.safetensors";
    return heed_second_save(times, ledger, {own, {}});
  };
  for (const auto& programs : {std::vector<uint64_t>{0, 77}, {0, 1, 2, 3}, {3, 4}})
    EXPECT_EQ(judge(programs).completeness, Completeness::complete);
  EXPECT_EQ(judge({2, 4}).completeness, Completeness::unknown);
  EXPECT_TRUE(judge({2, 4}).reason.starts_with(
      "process 2 wrote model.safetensors, and process 4 wrote model.safetensors, of another run"));
  EXPECT_EQ(judge({2, 4}, Completeness::weights).completeness, Completeness::unknown);
  EXPECT_EQ(judge({2, 4}, Completeness::incomplete).completeness, Completeness::incomplete);
  SaveTimes times{.first_written = "model.safetensors", .first_written_at = WallTime(seconds(20))};
  times.writers[2] = "model.safetensors";
  times.state_writer = 4;
  EXPECT_EQ(heed_second_save(times, ledger, {Completeness::complete, {}}).completeness, Completeness::unknown);
  ledger.whole = WallTime(seconds(20));
  EXPECT_EQ(heed_second_save(times, ledger, {Completeness::complete, {}}).completeness, Completeness::complete)
      << "only the Trainer's state was edited since it was whole";
  EXPECT_EQ(judge({2, 4}).completeness, Completeness::unknown);
}

TEST(SecondSave, MakesNothingBetter) {
  for (const auto own : {Completeness::incomplete, Completeness::unknown, Completeness::weights})
    EXPECT_EQ(judge(20, 8, true, own), own);
}

}  // namespace
}  // namespace ckptfs::fs

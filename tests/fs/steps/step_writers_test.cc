#include "fs/steps/step_writers.h"

#include <unistd.h>

#include "tests/fs/steps/inspected_steps.h"

namespace ckptfs::fs {
namespace {

class StepWritersTest : public InspectedSteps {
 protected:
  void SetUp() override {
    InspectedSteps::SetUp();
    if (IsSkipped()) return;
    writers_ = std::make_unique<StepWriters>(*store_, *facts_, [this](const StepWriters::Written& written) {
      ++told_;
      news_ += written.writers == nullptr ? 0 : 1;
    });
  }
  void note(const std::string& folder) {
    meta::Caller caller;
    caller.pid = ::getpid();
    writers_->note(at(folder), caller);
  }
  meta::LedgerEntry ledger(const std::string& step) { return meta::ledger_of(*store_, at(step)).value(); }

  std::unique_ptr<StepWriters> writers_;
  int told_ = 0, news_ = 0;
};

TEST_F(StepWritersTest, EveryNameThatBecomesAStep) {
  make_step(1);
  writers_->watch(at("/runs"), StepWriters::kRules);
  for (const char* const name : {"/runs/checkpoint-1/global_step1", "/runs/partial-5f3a-global_step5",
                                 "/runs/partial-fetch-5f3a-global_step6", "/runs/logs", "/elsewhere"}) {
    make_folder(name);
    note(name);
  }
  note("/runs");
  EXPECT_TRUE(ledger("/runs/checkpoint-1").unfinished);
  EXPECT_TRUE(ledger("/runs/partial-5f3a-global_step5").unfinished) << "it is renamed, once it is committed";
  for (const char* const name : {"/runs/partial-fetch-5f3a-global_step6", "/runs/logs", "/elsewhere", "/runs"})
    EXPECT_EQ(ledger(name), meta::LedgerEntry()) << name;
}

TEST_F(StepWritersTest, OfWatchedSeriesOnly) {
  make_step(1);
  note("/runs/checkpoint-1");
  EXPECT_EQ(ledger("/runs/checkpoint-1"), meta::LedgerEntry());
  for (const auto purpose : {StepWriters::kRules, StepWriters::kRemote}) writers_->watch(at("/runs"), purpose);
  writers_->unwatch(at("/runs"), StepWriters::kRules);
  note("/runs/checkpoint-1");
  EXPECT_TRUE(ledger("/runs/checkpoint-1").unfinished) << "there is a remote";
}

TEST_F(StepWritersTest, WhoIsKnownIsNotedAnewOnceTheStepIsWhole) {
  make_step(1);
  writers_->watch(at("/runs"), StepWriters::kRules);
  for (int i = 0; i < 3; ++i) note("/runs/checkpoint-1");
  EXPECT_EQ(told_, 3);
  EXPECT_EQ(news_, 1);
  int done = 0;
  const StepStatus status = facts_->inspect_step(at("/runs/checkpoint-1")).value();
  EXPECT_TRUE(writers_->note_whole(status, [&done] { ++done; }).value());
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(ledger("/runs/checkpoint-1").is_known_whole());
  EXPECT_TRUE(ledger("/runs/checkpoint-1").writers.empty());
  note("/runs/checkpoint-1");
  EXPECT_EQ(news_, 2);
  EXPECT_TRUE(ledger("/runs/checkpoint-1").unfinished);
}

TEST_F(StepWritersTest, AStepIsNotWholeThatSomebodyWritesMeanwhile) {
  make_step(1);
  writers_->watch(at("/runs"), StepWriters::kRules);
  const StepStatus before = facts_->inspect_step(at("/runs/checkpoint-1")).value();
  note("/runs/checkpoint-1");
  const auto never = [] { ADD_FAILURE() << "it is not whole"; };
  EXPECT_FALSE(writers_->note_whole(before, never).value()) << "a writer has come";
  const StepStatus status = facts_->inspect_step(at("/runs/checkpoint-1")).value();
  const auto open = files_->begin(at("/runs/checkpoint-1/config.json"), true);
  note("/runs/checkpoint-1");  // who is known
  EXPECT_FALSE(writers_->note_whole(status, never).value()) << "who is known has begun anew";
  EXPECT_TRUE(ledger("/runs/checkpoint-1").unfinished);
  files_->end(open.file, true);
}

}  // namespace
}  // namespace ckptfs::fs

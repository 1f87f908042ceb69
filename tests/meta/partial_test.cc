// Attempts to save that become steps.
#include "meta/steps/partial.h"

#include "meta/names.h"
#include "meta/steps/policy.h"
#include "meta/steps/steps.h"
#include "meta/tree/step_detection.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using PartialTest = ScratchStore;

TEST_F(PartialTest, AStepIsNumberedByItsNameIfTheSeriesSaysThatItIsOne) {
  ASSERT_TRUE(set_rules(*store_, at("/steps"), {{"steps", "iter_*"}}, {1000, 1000}));
  for (const char* const tag : {"iter_0000400", "iter_0000100", "other"}) {
    const auto attempt = begin_partial(*store_, at("/steps"), tag, "only", user());
    ASSERT_TRUE(attempt) << attempt.error().message();
    ASSERT_TRUE(commit_partial(*store_, attempt.value(), tag));
  }
  const auto number = [this](const std::string& tag) {
    return number_of(tag, store_->index().find_step(at("/steps/" + tag)).value().value_or(StepRecord()));
  };
  EXPECT_EQ(number("iter_0000400"), 400U);
  EXPECT_EQ(number("iter_0000100"), 100U) << "though it came later";
  EXPECT_EQ(number("other"), 1U) << "its name tells none";
}

TEST_F(PartialTest, AGlobForAllNamesMakesNoAttemptAStep) {
  ASSERT_TRUE(set_rules(*store_, at("/steps"), {{"steps", "*"}}, {1000, 1000}));
  EXPECT_TRUE(may_be_step(tree(), at("/steps"), "anything").value());
  EXPECT_FALSE(may_be_step(tree(), at("/steps"), set_aside_name("anything", 1)).value());
  EXPECT_FALSE(may_be_step(tree(), at("/steps"), partial_name("anything", "only")).value());
}

}  // namespace
}  // namespace ckptfs::meta

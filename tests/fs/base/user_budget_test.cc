#include "fs/base/user_budget.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <optional>

namespace ckptfs::fs {
namespace {

constexpr uid_t kSomebody = 1001, kAnother = 1002, kRoot = 0;

// With a limit of 400 descriptors, all users together get 200, and one user gets 100.
class DescriptorBudgetTest : public testing::Test {
 protected:
  DescriptorBudgetTest() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 400;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~DescriptorBudgetTest() override { ::setrlimit(RLIMIT_NOFILE, &before_); }

  rlimit before_{};
};

TEST_F(DescriptorBudgetTest, OneUserLeavesHalfToTheOthers) {
  DescriptorBudget budget(true);
  auto first = budget.take(kSomebody, 100);
  ASSERT_TRUE(first);
  EXPECT_EQ(first.value().add(1).error().errno_value(), EMFILE);
  EXPECT_EQ(budget.take(kSomebody, 1).error().errno_value(), EMFILE);
  EXPECT_TRUE(budget.take(kAnother, 100));
  EXPECT_TRUE(budget.take(kRoot, 100));
}

TEST_F(DescriptorBudgetTest, AllUsersLeaveHalfToTheDaemon) {
  DescriptorBudget budget(true);
  const auto first = budget.take(kRoot, 150);
  EXPECT_EQ(budget.take(kSomebody, 51).error().errno_value(), ENFILE);
  EXPECT_TRUE(budget.take(kSomebody, 50));
}

TEST_F(DescriptorBudgetTest, AMountForOneUserIsAllTheirs) {
  DescriptorBudget budget(false);
  EXPECT_TRUE(budget.take(kSomebody, 200));
}

TEST_F(DescriptorBudgetTest, WhatIsClosedIsGivenBack) {
  DescriptorBudget budget(true);
  std::optional<DescriptorBudget::Claim> kept;
  {
    auto claim = budget.take(kSomebody, 1);
    ASSERT_TRUE(claim);
    ASSERT_TRUE(claim.value().add(98));
    kept = std::move(claim).value();
  }
  EXPECT_FALSE(budget.take(kSomebody, 2));
  EXPECT_TRUE(budget.take(kSomebody, 1));
  kept.reset();
  EXPECT_TRUE(budget.take(kSomebody, 100));
}

TEST(MemoryBudget, OneUserGetsHalfOfIt) {
  MemoryBudget budget(true);
  const auto first = budget.take(kSomebody, MemoryBudget::kMost / 2);
  ASSERT_TRUE(first);
  EXPECT_EQ(budget.take(kSomebody, 1).error().errno_value(), EMFILE);
  EXPECT_TRUE(budget.take(kAnother, MemoryBudget::kMost / 2));
}

TEST(MemoryBudget, WhoHoldsNothingGetsWhatIsAskedFor) {
  MemoryBudget budget(true);
  const auto first = budget.take(kSomebody, 2 * MemoryBudget::kMost);
  ASSERT_TRUE(first);
  EXPECT_EQ(budget.take(kSomebody, 1).error().errno_value(), EMFILE);
  EXPECT_TRUE(budget.take(kAnother, MemoryBudget::kMost));
}

}  // namespace
}  // namespace ckptfs::fs

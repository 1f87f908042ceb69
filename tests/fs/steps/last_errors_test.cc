#include "fs/steps/last_errors.h"

#include <gtest/gtest.h>

namespace ckptfs::fs {
namespace {

constexpr uint32_t kAsker = 1000;
constexpr uint32_t kStranger = 1001;

TEST(LastErrorsTest, AreToldToWhoCausedThemAndToRoot) {
  LastErrors errors;
  EXPECT_EQ(errors.of(7, kAsker), std::nullopt);
  errors.remember(7, kAsker, Error(EBUSY, "somebody writes"));
  EXPECT_EQ(errors.of(7, kAsker), "somebody writes");
  EXPECT_EQ(errors.of(7, 0), "somebody writes");
  EXPECT_EQ(errors.of(7, kStranger), std::nullopt);
  EXPECT_EQ(errors.of(8, kAsker), std::nullopt);
}

TEST(LastErrorsTest, SuccessAndTheEndOfTheInodeTakeThemAway) {
  LastErrors errors;
  errors.remember(7, kAsker, Error(EBUSY));
  errors.remember(7, kStranger, success());
  EXPECT_EQ(errors.of(7, 0), std::nullopt);
  errors.remember(7, kAsker, Error(EBUSY));
  errors.forget(7);
  EXPECT_EQ(errors.of(7, 0), std::nullopt);
}

}  // namespace
}  // namespace ckptfs::fs

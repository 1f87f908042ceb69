#include "fs/steps/last_errors.h"

#include <gtest/gtest.h>

namespace ckptfs::fs {
namespace {

constexpr uint32_t kUser = 1000;
constexpr uint32_t kOther = 1001;

TEST(LastErrorsTest, AreToldToWhoCausedThemAndToRoot) {
  LastErrors errors;
  EXPECT_EQ(errors.of(7, kUser), std::nullopt);
  errors.remember(7, kUser, Error(EBUSY, "somebody writes"));
  EXPECT_EQ(errors.of(7, kUser), "somebody writes");
  EXPECT_EQ(errors.of(7, 0), "somebody writes");
  EXPECT_EQ(errors.of(7, kOther), std::nullopt);
  EXPECT_EQ(errors.of(8, kUser), std::nullopt);
}

TEST(LastErrorsTest, SuccessAndTheEndOfTheInodeTakeThemAway) {
  LastErrors errors;
  errors.remember(7, kUser, Error(EBUSY));
  errors.remember(7, kOther, success());
  EXPECT_EQ(errors.of(7, 0), std::nullopt);
  errors.remember(7, kUser, Error(EBUSY));
  errors.forget(7);
  EXPECT_EQ(errors.of(7, 0), std::nullopt);
}

}  // namespace
}  // namespace ckptfs::fs

#include "fs/base/log_limit.h"

#include <gtest/gtest.h>

namespace ckptfs::fs {
namespace {

TEST(LogLimit, CountsWhatAUserIsNotToWrite) {
  LogLimit limit;
  const auto begun = LogLimit::Clock::now();
  for (unsigned line = 0; line < LogLimit::kLines; ++line) EXPECT_EQ(limit.claim(1, begun), 0u);
  for (int more = 0; more < 3; ++more) EXPECT_EQ(limit.claim(1, begun), std::nullopt);
  EXPECT_EQ(limit.claim(2, begun), 0u) << "another user";
  EXPECT_EQ(limit.claim(1, begun + LogLimit::kTime), 3u);
  EXPECT_EQ(limit.claim(1, begun + LogLimit::kTime), 0u);
}

}  // namespace
}  // namespace ckptfs::fs

#include "io/duration.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using std::chrono::seconds;

TEST(DurationTest, HasAUnit) {
  EXPECT_EQ(parse_duration("45s").value(), seconds(45));
  EXPECT_EQ(parse_duration("90m").value(), seconds(90 * 60));
  EXPECT_EQ(parse_duration("36h").value(), seconds(36 * 3600));
  EXPECT_EQ(parse_duration("7d").value(), seconds(7 * 86400));
  EXPECT_EQ(parse_duration("2w").value(), seconds(14 * 86400));
}

TEST(DurationTest, ANumberAloneIsInSeconds) {
  EXPECT_EQ(parse_duration("0").value(), seconds(0));
  EXPECT_EQ(parse_duration("30").value(), seconds(30));
}

TEST(DurationTest, AnythingElseIsRefused) {
  for (const char* text :
       {"", "s", "-1", "+1", "1.5h", "1y", "1 h", "h1", "36600d1", "3162240001", "36601d", "99999999999999999999s"}) {
    EXPECT_ERRNO(EINVAL, parse_duration(text)) << text;
  }
  EXPECT_EQ(parse_duration("36600d").value(), seconds(3162240000));
}

}  // namespace
}  // namespace ckptfs::io

#include "meta/remote/look.h"

#include <gtest/gtest.h>

#include <thread>

#include "meta/remote/commit.h"
#include "meta/remote/remote_rules.h"
#include "meta/remote/tombstone.h"
#include "tests/io/testing.h"

namespace ckptfs::meta::remote::testing {
namespace {

TEST(LookText, GoesThereAndBack) {
  Look look;
  look.n = 4;
  look.host = "node0";
  look.restored = "0123";
  look.tags["step_1"] = {3, {1, 2}};
  look.undecided = {{"step_2", 0, "0123456789abcdef"}};
  look.garbage[{"step_1", 1, "0123456789abcdef"}] = {{0, 7}, {9, 9}};
  look.needless_parts = {{"step_1", 1, "0123456789abcdef"}};
  const Look again = parse_look(text_of(look), 4, "looks/4").value();
  EXPECT_EQ(again.host, look.host);
  EXPECT_EQ(again.restored, look.restored);
  EXPECT_EQ(again.tags, look.tags);
  EXPECT_EQ(again.undecided, look.undecided);
  EXPECT_EQ(again.garbage, look.garbage);
  EXPECT_EQ(again.needless_parts, look.needless_parts);
  EXPECT_ERRNO(EBADMSG, parse_look("{}", 4, "looks/4"));
}

TEST(LookText, AListMayHaveNamedAPackTwice) {
  Look look;
  const PushName push{"step_1", 1, "0123456789abcdef"};
  look.garbage[push] = {{0, 1}, {1, 2}, {UINT32_MAX, UINT32_MAX}};
  EXPECT_EQ(parse_look(text_of(look), 1, "looks/1").value().garbage, look.garbage);
}

TEST(LookText, ANewerVersionIsRefusedByName) {
  const auto newer = [](std::string text) {
    const std::string version = "\"version\":1";
    return text.replace(text.find(version), version.size(), "\"version\":2");
  };
  EXPECT_ERRNO(EPROTO, parse_look(newer(text_of(Look())), 1, "looks/1"));
  EXPECT_ERRNO(EPROTO, parse_rules(newer(text_of(NumberedRules())), 1, "rules/1"));
  EXPECT_ERRNO(EPROTO, parse_tombstone(newer(text_of(Tombstone())), "gone/a/1"));
  EXPECT_ERRNO(EPROTO, parse_void(newer(text_of(Void())), "a", "steps/a/1"));
}

TEST(LookText, TwoWhoWriteTheMemoryOfAMachineLeaveItWhole) {
  const io::testing::ScratchFolder folder;
  const std::string file = folder.path("seen");
  const auto write = [&](const std::string& host) {
    Look look;
    look.host = host;
    for (int round = 0; round < 100; ++round) ASSERT_OK(write_memory(file, look));
  };
  std::thread other(write, std::string(4'000, 'b'));
  write("a");
  other.join();
  EXPECT_OK(read_memory(file));
}

TEST(PackRangesTest, KnowWhatIsInThem) {
  PackRanges ranges{{8, 9}, {0, 5}, {3, 4}, {5, 6}};
  unite(ranges);
  EXPECT_EQ(ranges, (PackRanges{{0, 6}, {8, 9}}));
  for (const uint32_t pack : {0U, 4U, 6U, 8U, 9U}) EXPECT_TRUE(contains(ranges, pack)) << pack;
  for (const uint32_t pack : {7U, 10U}) EXPECT_FALSE(contains(ranges, pack)) << pack;
  append(ranges, 10);
  append(ranges, 12);
  EXPECT_EQ(ranges, (PackRanges{{0, 6}, {8, 10}, {12, 12}}));
}

}  // namespace
}  // namespace ckptfs::meta::remote::testing

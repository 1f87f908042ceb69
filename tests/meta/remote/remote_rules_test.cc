#include "meta/remote/remote_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"

namespace ckptfs::meta::remote::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RemoteRulesTest, ValuesAreCheckedInWords) {
  RemoteRules rules;
  EXPECT_OK(set_rule(rules, "keep_last", "20"));
  EXPECT_OK(set_rule(rules, "keep_for", "30d"));
  EXPECT_ERRNO(EINVAL, set_rule(rules, "keep_last", "0"));
  EXPECT_ERRNO(EINVAL, set_rule(rules, "keep_every", "x"));
  EXPECT_ERRNO(EINVAL, set_rule(rules, "keep_for", "soon"));
  EXPECT_THAT(set_rule(rules, "keep_best", "3").error().message(), HasSubstr("no such rule"));
  NumberedRules numbered{3, rules, "node0"};
  numbered.rules.pins = {"step_1~2"};
  const NumberedRules again = parse_rules(text_of(numbered), 3, "rules/3").value();
  EXPECT_EQ(again.rules, numbered.rules);
  EXPECT_EQ(again.host, "node0");
  EXPECT_OK(set_rule(rules, "keep_last", ""));
  EXPECT_FALSE(rules.keep_last);
}

TEST(RemoteRulesTest, TwoWhoChangeThemBothSucceed) {
  io::testing::MemoryStore store;
  bool other_came = false;
  const auto change = [&](RemoteRules& rules) -> Result<> {
    if (!other_came) {
      other_came = true;
      const auto pin = [](RemoteRules& theirs) { return theirs.pins.insert("step_1"), success(); };
      TRY(change_rules(store, "node1", pin, {}));
    }
    return set_rule(rules, "keep_last", "3");
  };
  ASSERT_OK(change_rules(store, "node0", change, {}));
  const NumberedRules rules = read_rules(store, {}).value();
  EXPECT_EQ(rules.n, 2U);
  EXPECT_EQ(rules.rules.keep_last, 3U);
  EXPECT_THAT(rules.rules.pins, ElementsAre("step_1"));
}

TEST(RemoteRulesTest, AGapIsAListThatIsNotWhole) {
  io::testing::MemoryStore store;
  for (const char* const value : {"1", "2", "3"}) {
    ASSERT_OK(change_rules(store, "a", [&](RemoteRules& rules) { return set_rule(rules, "keep_last", value); }, {}));
  }
  ASSERT_OK(store.remove(rules_key(2), {}));
  EXPECT_ERRNO(EIO, read_rules(store, {}));
}

}  // namespace
}  // namespace ckptfs::meta::remote::testing

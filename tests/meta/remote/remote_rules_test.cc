#include "meta/remote/remote_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

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
  numbered.rules.pins = {new_save("step_1").text(), new_save("step_2").text()};
  const NumberedRules again = parse_rules(text_of(numbered), 3, "rules/3").value();
  EXPECT_EQ(again.rules, numbered.rules);
  EXPECT_EQ(again.host, "node0");
  EXPECT_OK(set_rule(rules, "keep_last", ""));
  EXPECT_FALSE(rules.keep_last);
}

TEST(RemoteRulesTest, TwoWhoChangeThemBothSucceed) {
  io::testing::MemoryStore store;
  const std::string pinned = new_save("step_1").text();
  bool other_came = false;
  const auto change = [&](RemoteRules& rules) -> Result<> {
    if (!other_came) {
      other_came = true;
      const auto pin = [&](RemoteRules& theirs) { return theirs.pins.insert(pinned), success(); };
      TRY(change_rules(store, "node1", pin, {}));
    }
    return set_rule(rules, "keep_last", "3");
  };
  ASSERT_OK(change_rules(store, "node0", change, {}));
  const NumberedRules rules = read_rules(store, {}).value();
  EXPECT_EQ(rules.n, 2U);
  EXPECT_EQ(rules.rules.keep_last, 3U);
  EXPECT_THAT(rules.rules.pins, ElementsAre(pinned));
}

// Which number a step has among those of its name changes when an earlier save is pushed late.
TEST(RemoteRulesTest, APinStaysWithItsSave) {
  const DecisionName pinned = new_save("step_1", 10), last = new_save("step_2", 20), late = new_save("step_1", 5);
  RemoteRules rules;
  rules.keep_last = 1;
  rules.pins = {pinned.text()};
  const std::vector<CommittedStep> before{{pinned, 1, {}}, {last, 1, {}}};
  auto decisions = decide_by_rules(rules, before, {});
  ASSERT_EQ(decisions.size(), 2U);
  EXPECT_EQ(decisions[0].why, "pinned");
  EXPECT_TRUE(decisions[1].stays);
  const std::vector<CommittedStep> after{{late, 1, {}}, {pinned, 2, {}}, {last, 1, {}}};
  ASSERT_EQ(after[0].name(), before[0].name()) << "it has taken the name";
  decisions = decide_by_rules(rules, after, {});
  ASSERT_EQ(decisions.size(), 3U);
  EXPECT_FALSE(decisions[0].stays);
  EXPECT_EQ(decisions[1].why, "pinned");
  EXPECT_TRUE(decisions[2].stays);
}

// Old is what was saved before, however late it was pushed; and what has a lower number.
TEST(RemoteRulesTest, NewerIsWhatWasSavedLaterOrHasAHigherNumber) {
  RemoteRules rules;
  rules.keep_last = 1;
  const std::vector<CommittedStep> steps{{new_save("step_1", 1), 1, {}},
                                         {new_save("step_9", 2), 1, {}},
                                         {new_save("step_2", 3), 1, {}},
                                         {new_save("step_3", 4), 1, {}}};
  std::vector<bool> stay;
  for (const RuleDecision& decision : decide_by_rules(rules, steps, {})) stay.push_back(decision.stays);
  EXPECT_EQ(stay, (std::vector<bool>{false, true, false, true}));
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

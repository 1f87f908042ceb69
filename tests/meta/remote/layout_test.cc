#include "meta/remote/layout.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace ckptfs::meta::remote {
namespace {

const std::string kPushId = "0123456789abcdef";

TEST(Layout, KeysComeBack) {
  for (const char* const tag :
       {"global_step5", "checkpoint-500", "epoch=3-step=900", "a.b", "step 7", "5", "schritt-\xc3\xbc", "%2F"}) {
    for (const uint32_t slot : {uint32_t{0}, uint32_t{17}, UINT32_MAX}) {
      const PushName push{tag, slot, kPushId};
      EXPECT_EQ(parse_push(push.text()), push);
      EXPECT_EQ(parse_part_key(part_key(push)), push);
      EXPECT_EQ(parse_push_key(push_key(push)), push);
      EXPECT_EQ(parse_folder(file_key(push, 1, "sub/a")), push.folder());
      EXPECT_EQ(parse_folder(file_key(push, UINT32_MAX, "sub/a")), push.folder());
    }
    for (const Order& order : {Order{}, Order{1, 12}, Order{UINT32_MAX, UINT64_MAX}}) {
      const DecisionName decision{order, tag, kPushId};
      EXPECT_EQ(parse_order(order.text()), order);
      EXPECT_EQ(parse_decision(decision.text()), decision);
      EXPECT_EQ(parse_step_key(step_key(decision)), decision);
      EXPECT_EQ(parse_gone_key(gone_key(decision)), decision);
      EXPECT_EQ(decision.lead(), (PushName{tag, 0, kPushId}));
    }
  }
  for (const uint32_t slot : {uint32_t{0}, uint32_t{17}, UINT32_MAX}) {
    for (const uint32_t term : {uint32_t{1}, uint32_t{12}, UINT32_MAX - 1}) {
      const auto owner = parse_owner_key(owner_key(slot, term));
      ASSERT_TRUE(owner);
      EXPECT_EQ(owner->slot, slot);
      EXPECT_EQ(owner->term, term);
    }
  }
  for (const uint64_t n : {uint64_t{1}, uint64_t{12}, UINT64_MAX}) EXPECT_EQ(parse_rules_key(rules_key(n)), n);
}

TEST(Layout, ALaterSaveComesFirstInAList) {
  const std::vector<Order> orders{{1, 0}, {1, 1}, {1, 0x1000}, {1, UINT64_MAX}, {2, 0}, {2, 5}, {0x100, 0}};
  for (size_t at = 1; at < orders.size(); ++at) {
    EXPECT_LT(orders[at - 1], orders[at]);
    EXPECT_EQ(orders[at].text().size(), 24U);
    EXPECT_GT(orders[at - 1].text(), orders[at].text());
    EXPECT_GT(step_key({orders[at - 1], "a", kPushId}), step_key({orders[at], "z", kPushId}))
        << "whatever it is called";
  }
  EXPECT_EQ((Order{1, 255}.text()), "fffffffeffffffffffffff00");
}

TEST(Layout, AKeyOfOneKindIsNoneOfAnother) {
  const DecisionName decision{{1, 2}, "step_5", kPushId};
  EXPECT_FALSE(parse_gone_key(step_key(decision)));
  EXPECT_FALSE(parse_step_key(gone_key(decision)));
  EXPECT_FALSE(parse_step_key(part_key(decision.lead())));
  EXPECT_FALSE(parse_part_key(step_key(decision)));
  EXPECT_FALSE(parse_part_key(push_key({"step_5", 0, kPushId})));
  EXPECT_FALSE(parse_owner_key(rules_key(1)));
  EXPECT_FALSE(parse_rules_key(owner_key(1, 1)));
  EXPECT_FALSE(parse_folder(step_key(decision)));
  EXPECT_FALSE(parse_push_key(part_key({"step_5", 0, kPushId})));
  EXPECT_FALSE(parse_folder(part_key({"step_5", 0, kPushId})));
  EXPECT_FALSE(parse_folder(kFactsKey));
}

// Whoever may write to the remote may make any key.
TEST(Layout, HostileKeysAreNobodys) {
  const std::string push = "step_5/0." + kPushId;
  const std::vector<std::string> parts{"",
                                       "/",
                                       ".",
                                       "step_5",
                                       "step_5/",
                                       "step_5/0",
                                       "step_5/0.",
                                       "step_5/." + kPushId,
                                       "/0." + kPushId,
                                       "step_5//0." + kPushId,
                                       "../0." + kPushId,
                                       "./0." + kPushId,
                                       ".step/0." + kPushId,
                                       "a/../0." + kPushId,
                                       "step_5/0." + kPushId + "/",
                                       "step_5/0." + kPushId + "0",
                                       "step_5/0." + kPushId.substr(1),
                                       "step_5/00." + kPushId,
                                       "step_5/+0." + kPushId,
                                       "step_5/-1." + kPushId,
                                       "step_5/ 0." + kPushId,
                                       "step_5/0x0." + kPushId,
                                       "step_5/4294967296." + kPushId,
                                       "step_5/0.0123456789ABCDEF",
                                       "step_5/0.0123456789abcdeg",
                                       "step_5/0.0." + kPushId,
                                       "a/b/0." + kPushId,
                                       "step_5~2/0." + kPushId,
                                       push + std::string(1, '\0'),
                                       std::string("step\0_5/0.", 10) + kPushId,
                                       "step\n5/0." + kPushId,
                                       std::string(2000, 'a') + "/0." + kPushId};
  for (const std::string& text : parts) {
    EXPECT_FALSE(parse_push(text)) << text;
    EXPECT_FALSE(parse_part_key(kParts + text)) << text;
  }
  EXPECT_FALSE(parse_part_key(push));
  EXPECT_FALSE(parse_part_key(".ckptfs/Parts/" + push));
  for (const std::string& key :
       {"step_5." + kPushId, "." + kPushId + "/a", std::string("step_5/a"), std::string("step_5.0123456789ABCDEF/a"),
        "step_5." + kPushId + "0/a", "step_5~2." + kPushId + "/a", "../step_5." + kPushId + "/a"}) {
    EXPECT_FALSE(parse_folder(key)) << key;
  }
}

TEST(Layout, HostileNamesOfDecisionsAreNobodys) {
  const std::string order = Order{1, 5}.text(), step = ".step_5.", right = order + step + kPushId;
  EXPECT_TRUE(parse_decision(right));
  const std::vector<std::string> texts{"",
                                       "/",
                                       ".",
                                       "step_5",
                                       "step_5/1",
                                       order,
                                       order + ".",
                                       order + "." + kPushId,
                                       order + ".." + kPushId,
                                       order + "..." + kPushId,
                                       order + "...." + kPushId,
                                       order + ".step_5",
                                       order + step,
                                       order + step + kPushId.substr(1),
                                       order + step + kPushId + "0",
                                       order + step + "0123456789ABCDEF",
                                       order + step + "0123456789abcdeg",
                                       order + "step_5." + kPushId,
                                       order + "0" + step + kPushId,
                                       order.substr(1) + step + kPushId,
                                       " " + order.substr(1) + step + kPushId,
                                       "+" + order.substr(1) + step + kPushId,
                                       "F" + order.substr(1) + step + kPushId,
                                       "g" + order.substr(1) + step + kPushId,
                                       "0x" + order.substr(2) + step + kPushId,
                                       order + "/step_5." + kPushId,
                                       order + ".a/b." + kPushId,
                                       order + "../b." + kPushId,
                                       order + ".step_5~2." + kPushId,
                                       order + ".step\n5." + kPushId,
                                       order + std::string(".a\0b.", 5) + kPushId,
                                       order + ".a\xff." + kPushId,
                                       order + "." + std::string(211, 'a') + "." + kPushId,
                                       right + "/",
                                       right + "/1",
                                       " " + right,
                                       "/" + right,
                                       right + " ",
                                       right + std::string(1, '\0')};
  for (const std::string& text : texts) {
    EXPECT_FALSE(parse_decision(text)) << text;
    EXPECT_FALSE(parse_step_key(kSteps + text)) << text;
    EXPECT_FALSE(parse_gone_key(kGone + text)) << text;
  }
  EXPECT_FALSE(parse_step_key(right));
  for (const std::string& text : {std::string(), order.substr(1), order + "0", "F" + order.substr(1),
                                  "-" + order.substr(1), order.substr(1) + " ", order.substr(1) + "\n"}) {
    EXPECT_FALSE(parse_order(text)) << text;
  }
}

TEST(Layout, HostileKeysOfOwnersAndRulesAreNobodys) {
  for (const char* const text :
       {"",     "/",    "0",     "0/",           "/1",           "0/0",  "00/1", "0/01",  "+0/1",
        "-1/1", "0/-1", "0/+1",  " 0/1",         "0/ 1",         "0/1 ", "0/1/", "0/1/1", "0//1",
        "x/1",  "0/x",  "0/0x1", "4294967296/1", "0/4294967296", "../1", "0/.."}) {
    EXPECT_FALSE(parse_owner_key(std::string(kSlots) + text)) << text;
  }
  EXPECT_FALSE(parse_owner_key("0/1"));
  for (const char* const text : {"", "/", "0", "01", "+1", "-1", "1 ", "1/", "1/1", "0x1", "18446744073709551616"}) {
    EXPECT_FALSE(parse_rules_key(std::string(kRules) + text)) << text;
  }
}

TEST(Layout, TagsThatCannotBePushedAreRefusedInWords) {
  for (const char* const tag : {"global_step5", "checkpoint-500", "a..b", "step_5.", "#", "step 5"}) {
    EXPECT_TRUE(check_tag(tag)) << tag;
  }
  for (const std::string& tag :
       std::vector<std::string>{"", ".", "..", ".step", "a/b", "/", "step_5~2", "~", "a\nb", "a\xff", "a\x80z",
                                std::string("a\0b", 3), "a\x7f", std::string(2000, 'a')}) {
    const auto checked = check_tag(tag);
    ASSERT_FALSE(checked) << tag;
    EXPECT_EQ(checked.error().errno_value(), EINVAL);
    EXPECT_FALSE(checked.error().message().empty());
  }
  EXPECT_NE(check_tag("step_5~2").error().message().find("rename it"), std::string::npos);
}

// In a folder, what is decided about it is a file of that name.
TEST(Layout, TheLongestTagFitsInAName) {
  constexpr size_t kLongestTag = 210, kLongestName = 255;
  const std::string tag(kLongestTag, 'a');
  EXPECT_TRUE(check_tag(tag));
  EXPECT_LE((DecisionName{{1, 1}, tag, kPushId}.text().size()), kLongestName);
  EXPECT_EQ(parse_decision(DecisionName{{1, 1}, tag, kPushId}.text())->tag, tag);
  const auto refused = check_tag(tag + "a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value(), EINVAL);
  EXPECT_NE(refused.error().message().find("too long"), std::string::npos);
}

TEST(Layout, WhatSaysThatAModelIsThereComesLast) {
  for (const char* const last : {"config.json", "a/config.json", ".metadata", "optim/.metadata", "model.index.json"}) {
    EXPECT_TRUE(comes_last(last)) << last;
  }
  for (const char* const other :
       {"adapter_config.json", "metadata", "model.safetensors", "a.metadata", "config.json/a"}) {
    EXPECT_FALSE(comes_last(other)) << other;
  }
}

TEST(Layout, EachPushHasItsOwnName) {
  std::set<PushName> names;
  for (int at = 0; at < 1000; ++at) {
    const PushName push{"step_5", 3, new_id()};
    EXPECT_EQ(parse_push(push.text()), push);
    names.insert(push);
  }
  EXPECT_EQ(names.size(), 1000U);
}

}  // namespace
}  // namespace ckptfs::meta::remote

#include "meta/remote/layout.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace ckptfs::meta::remote {
namespace {

const std::string kId = "0123456789abcdef";

TEST(Layout, KeysComeBack) {
  for (const char* const tag :
       {"global_step5", "checkpoint-500", "epoch=3-step=900", "a.b", "step 7", "5", "schritt-\xc3\xbc", "%2F"}) {
    for (const uint32_t slot : {uint32_t{0}, uint32_t{17}, UINT32_MAX}) {
      const PushName push{tag, slot, kId};
      EXPECT_EQ(parse_push(push.text()), push);
      EXPECT_EQ(parse_part_key(part_key(push)), push);
      EXPECT_EQ(parse_push_key(push_key(push)), push);
      EXPECT_EQ(parse_folder(file_key(push, 1, "sub/a")), push.folder());
      EXPECT_EQ(parse_folder(file_key(push, UINT32_MAX, "sub/a")), push.folder());
    }
    for (const uint64_t n : {uint64_t{1}, uint64_t{12}, UINT64_MAX}) {
      const DecisionName decision{tag, n};
      EXPECT_EQ(parse_step_key(step_key(decision)), decision);
      EXPECT_EQ(parse_gone_key(gone_key(decision)), decision);
      EXPECT_EQ(parse_vote_key(vote_key(decision, 7))->decision, decision);
      EXPECT_EQ(parse_vote_key(vote_key(decision, 7))->slot, 7U);
    }
  }
}

TEST(Layout, AKeyOfOneKindIsNoneOfAnother) {
  const DecisionName decision{"step_5", 2};
  EXPECT_FALSE(parse_gone_key(step_key(decision)));
  EXPECT_FALSE(parse_step_key(gone_key(decision)));
  EXPECT_FALSE(parse_step_key(vote_key(decision, 1)));
  EXPECT_FALSE(parse_part_key(push_key({"step_5", 0, kId})));
  EXPECT_FALSE(parse_vote_key(step_key(decision)));
  EXPECT_FALSE(parse_push_key(part_key({"step_5", 0, kId})));
  EXPECT_FALSE(parse_folder(part_key({"step_5", 0, kId})));
  EXPECT_FALSE(parse_folder(kFactsKey));
}

// Whoever may write to the remote may make any key.
TEST(Layout, HostileKeysAreNobodys) {
  const std::string push = "step_5/0." + kId;
  const std::vector<std::string> parts{"",
                                       "/",
                                       ".",
                                       "step_5",
                                       "step_5/",
                                       "step_5/0",
                                       "step_5/0.",
                                       "step_5/." + kId,
                                       "/0." + kId,
                                       "step_5//0." + kId,
                                       "../0." + kId,
                                       "./0." + kId,
                                       ".step/0." + kId,
                                       "a/../0." + kId,
                                       "step_5/0." + kId + "/",
                                       "step_5/0." + kId + "0",
                                       "step_5/0." + kId.substr(1),
                                       "step_5/00." + kId,
                                       "step_5/+0." + kId,
                                       "step_5/-1." + kId,
                                       "step_5/ 0." + kId,
                                       "step_5/0x0." + kId,
                                       "step_5/4294967296." + kId,
                                       "step_5/0.0123456789ABCDEF",
                                       "step_5/0.0123456789abcdeg",
                                       "step_5/0.0." + kId,
                                       "a/b/0." + kId,
                                       "step_5~2/0." + kId,
                                       push + std::string(1, '\0'),
                                       std::string("step\0_5/0.", 10) + kId,
                                       "step\n5/0." + kId,
                                       std::string(2000, 'a') + "/0." + kId};
  for (const std::string& text : parts) {
    EXPECT_FALSE(parse_push(text)) << text;
    EXPECT_FALSE(parse_part_key(kParts + text)) << text;
  }
  EXPECT_FALSE(parse_part_key(push));
  EXPECT_FALSE(parse_part_key(".ckptfs/Parts/" + push));
  for (const std::string& key :
       {"step_5." + kId, "." + kId + "/a", std::string("step_5/a"), std::string("step_5.0123456789ABCDEF/a"),
        "step_5." + kId + "0/a", "step_5~2." + kId + "/a", "../step_5." + kId + "/a"}) {
    EXPECT_FALSE(parse_folder(key)) << key;
  }
  for (const char* const text :
       {"",           "/",         "step_5",    "step_5/",    "step_5/0",   "step_5/01",
        "step_5/+1",  "step_5/-1", "step_5/1 ", "step_5/ 1",  "step_5/1/",  "step_5/1/1",
        "step_5//1",  "/1",        "../1",      "step_5/1e3", "step_5/0x1", "step_5/18446744073709551616",
        "step_5~2/1", ".step/1"}) {
    EXPECT_FALSE(parse_step_key(std::string(kSteps) + text)) << text;
    EXPECT_FALSE(parse_gone_key(std::string(kGone) + text)) << text;
  }
  for (const char* const text : {"", "/", "00", "-1", "+1", "1/", "1/1", "4294967296", "x"}) {
    EXPECT_FALSE(parse_vote_key(".ckptfs/votes/step_5/1/" + std::string(text))) << text;
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
    const PushName push = new_push("step_5", 3);
    EXPECT_EQ(parse_push(push.text()), push);
    names.insert(push);
  }
  EXPECT_EQ(names.size(), 1000U);
}

}  // namespace
}  // namespace ckptfs::meta::remote

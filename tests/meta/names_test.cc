#include "meta/names.h"

#include <gtest/gtest.h>

#include "meta/index/codec.h"
#include "meta/tree/gate.h"

namespace ckptfs::meta {
namespace {

TEST(Names, StepNumbers) {
  EXPECT_EQ(step_number("global_step100"), 100U);
  EXPECT_EQ(step_number("checkpoint-500"), 500U);
  EXPECT_EQ(step_number("step_7"), 7U);
  EXPECT_EQ(step_number("epoch=3-step=900"), 900U);
  EXPECT_EQ(step_number("epoch=3-step=900.ckpt"), 900U);
  EXPECT_EQ(step_number("checkpoint_3"), 3U);
  EXPECT_EQ(step_number("iter_0000100"), 100U);
  EXPECT_EQ(step_number("global_step_12"), 12U);
  EXPECT_EQ(step_number("epoch_2_step_900"), 900U);
  EXPECT_EQ(step_number("ep0-ba2"), 2U);
  for (const char* name : {"best_model", "global_step_", "epoch_step_4x", "epoch_2", "ep-ba", "ep_2", "20260301",
                           "iter", "epoch_0_step_1_best", "epsilon-ba2", "epoch_notes_step_3", "ep0-ba2-rank0"})
    EXPECT_EQ(step_number(name), std::nullopt) << name;
  EXPECT_EQ(step_number("checkpoint-"), std::nullopt);
}

TEST(Names, WhatMayHoldASteps) {
  for (const char* name : {"checkpoint-500", "global_step5", "epoch=3-step=900.ckpt"})
    EXPECT_TRUE(may_hold_step(name)) << name;
  for (const char* name : {"iter_1", "checkpoint_1", "ep1-ba5", "epoch_0_step_1", "runs"})
    EXPECT_FALSE(may_hold_step(name)) << name << ": a run may lie in it";
}

TEST(Names, SwapFoldersAndRanks) {
  EXPECT_TRUE(is_swap_folder_name("zero_stage_3"));
  EXPECT_FALSE(is_swap_folder_name("zero_stage_"));
  EXPECT_FALSE(is_swap_folder_name("zero_stage_3x"));
  EXPECT_EQ(rank_of("rank12"), 12U);
  EXPECT_EQ(rank_of("rank"), std::nullopt);
  EXPECT_EQ(checkpoint_rank_name(7), "rank07");
  EXPECT_EQ(checkpoint_rank_name(123), "rank123");
}

TEST(Codec, RecordsComeBack) {
  InodeRecord inode;
  inode.mode = S_IFREG | 0640;
  inode.uid = 7;
  inode.flags = kSwap | kRecovered;
  inode.blob = 0x1234567890;
  inode.cow_reserve = 99;
  inode.mtime = {-5, 999999999};
  inode.name = "here";
  inode.target = "there";
  const auto back = decode_inode(encode(inode));
  ASSERT_TRUE(back);
  EXPECT_EQ(back.value().mode, inode.mode);
  EXPECT_EQ(back.value().flags, uint32_t{kSwap});
  EXPECT_EQ(back.value().blob, inode.blob);
  EXPECT_EQ(back.value().mtime.tv_sec, -5);
  EXPECT_EQ(back.value().name, "here");
  EXPECT_EQ(back.value().target, "");
  inode.mode = S_IFLNK | 0777;
  const auto link = decode_inode(encode(inode));
  ASSERT_TRUE(link);
  EXPECT_EQ(link.value().name, "");
  EXPECT_EQ(link.value().target, "there");
}

TEST(Codec, EveryTruncationIsAnError) {
  const std::string whole = encode(StepRecord{5, {1, 2}, true, false, true, "a\nb\n"});
  EXPECT_TRUE(decode_step(whole));
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(decode_step(whole.substr(0, size))) << size;
  EXPECT_FALSE(decode_step(whole + "x"));
  std::string other = whole;
  other[0] = kValueVersion + 1;
  EXPECT_FALSE(decode_step(other));
}

TEST(Codec, KeysSortAsNumbers) {
  EXPECT_LT(number_key(255), number_key(256));
  EXPECT_LT(name_key(1, "z"), name_key(2, "a"));
  EXPECT_EQ(key_number(name_key(77, "n")), 77U);
  EXPECT_EQ(key_name(name_key(77, "n")), "n");
}

TEST(Gate, ParksWhatItGuardsAndLetsTheRestPass) {
  Gate gate;
  int ran = 0;
  gate.close({5});
  EXPECT_TRUE(gate.enter({6}, [] {}));
  EXPECT_FALSE(gate.enter({6, 5}, [&] { ++ran; }));
  EXPECT_EQ(ran, 0);
  gate.open();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(gate.enter({5}, [] {}));
}

// No trainer takes an attempt for a step, nor counts it as one.
TEST(Names, Attempts) {
  const std::string name = partial_name("checkpoint-500", "5f-3a");
  EXPECT_EQ(name, "partial-5f-3a-checkpoint-500");
  EXPECT_TRUE(is_partial_name(name));
  EXPECT_FALSE(is_fetch_name(name));
  EXPECT_TRUE(is_fetch_name(partial_name("checkpoint-500", "fetch-5f3a")));
  EXPECT_FALSE(is_fetch_name("fetch-5f3a-checkpoint-500"));
  EXPECT_EQ(tags_of_partial(name), (std::vector<std::string_view>{"3a-checkpoint-500", "checkpoint-500", "500"}));
  EXPECT_TRUE(is_partial_name("checkpoint-500.5f3a.partial"));
  EXPECT_EQ(tags_of_partial("checkpoint-500.5f3a.partial"), std::vector<std::string_view>{"checkpoint-500"});
  EXPECT_FALSE(is_partial_name("checkpoint-500"));
  EXPECT_TRUE(tags_of_partial("checkpoint-500").empty());
  EXPECT_FALSE(check_tag(name));
}

}  // namespace
}  // namespace ckptfs::meta

#include "fs/steps/push_states.h"

#include <gtest/gtest.h>

namespace ckptfs::fs {
namespace {

constexpr meta::InodeNumber kSeries = 5, kStep = 6;
constexpr io::Digest kNow{std::byte{1}}, kLater{std::byte{2}};

PushState committed(const io::Digest& fingerprint) {
  PushState state;
  state.stage = PushState::Stage::committed;
  state.name = "global_step5~2";
  state.fingerprint = fingerprint;
  return state;
}

TEST(PushStates, AStepCountsAsPushedOnlyAsItWasCommitted) {
  PushStates states;
  EXPECT_FALSE(states.is_unpushed(kSeries, kStep, kNow));  // there is no remote
  states.add_series(kSeries, 2);
  EXPECT_TRUE(states.has_remote(kSeries));
  EXPECT_TRUE(states.has_slots(kSeries));
  EXPECT_TRUE(states.is_unpushed(kSeries, kStep, kNow));  // nobody has looked yet
  states.set(kSeries, kStep, committed(kNow));
  EXPECT_FALSE(states.is_unpushed(kSeries, kStep, kNow));
  EXPECT_TRUE(states.is_unpushed(kSeries, kStep, kLater));  // it has changed since
  states.forget(kStep);
  EXPECT_TRUE(states.is_unpushed(kSeries, kStep, kNow));
}

TEST(PushStates, WithItsRemoteASeriesLosesItsStates) {
  PushStates states;
  states.add_series(kSeries, 1);
  EXPECT_FALSE(states.has_slots(kSeries));
  states.set(kSeries, kStep, committed(kNow));
  states.remove_series(kSeries);
  EXPECT_FALSE(states.of(kStep));
  states.set(kSeries, kStep, committed(kNow));  // a push that was under way
  EXPECT_FALSE(states.of(kStep));
}

TEST(PushStates, TheAgeOfAStepCountsFromWhenItWasUnpushedFirst) {
  PushStates states;
  states.add_series(kSeries, 1);
  states.set(kSeries, kStep, PushState());
  const auto first = states.of(kStep)->since;
  PushState pushing;
  pushing.stage = PushState::Stage::pushing;
  states.set(kSeries, kStep, pushing);
  EXPECT_EQ(states.of(kStep)->since, first);
  states.set(kSeries, kStep, committed(kNow));
  states.set(kSeries, kStep, PushState());
  EXPECT_NE(states.of(kStep)->since, first);
}

TEST(PushStates, Texts) {
  PushState state;
  EXPECT_EQ(state.text(), "unpushed");
  state.stage = PushState::Stage::pushing;
  EXPECT_EQ(state.text(), "pushing");
  state.bytes = 200;
  state.sent = 50;
  state.copied = 40;
  EXPECT_EQ(state.text(), "pushing 45%");
  state.stage = PushState::Stage::waiting;
  EXPECT_EQ(state.text(), "waiting");
  state.missing = {1};
  EXPECT_EQ(state.text(), "waiting for slot 1");
  state.missing = {1, 2};
  EXPECT_EQ(state.text(), "waiting for slots 1, 2");
  EXPECT_EQ(committed(kNow).text(), "committed global_step5~2");
}

}  // namespace
}  // namespace ckptfs::fs

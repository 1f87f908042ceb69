// How long a step has been unchanged, by a clock that only counts up.
#include "meta/steps/seen_step.h"

#include "io/fault.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using namespace std::chrono_literals;
using SeenStepTest = ScratchStore;

constexpr WallTime kMonday{1'000'000s};
constexpr InodeNumber kSeries = 7;

// A week later, so that no date is recent.
Moment at_time(StoreTime time) { return {kMonday + 7 * 24h + time, time}; }

TEST(SeeStepTest, WhatHasChangedIsNew) {
  const SeenStep first = see_step({}, kSeries, kMonday, {}, at_time(10s));
  EXPECT_EQ(first, (SeenStep{kSeries, kMonday, 10s, {}, 0s}));
  const SeenStep complete = see_step(first, kSeries, kMonday + 1s, kMonday, at_time(20s));
  EXPECT_EQ(complete, (SeenStep{kSeries, kMonday + 1s, 20s, kMonday, 20s}));
  EXPECT_EQ(see_step(complete, kSeries, kMonday + 1s, kMonday, at_time(30s)), complete) << "nothing has changed";
  const SeenStep touched = see_step(complete, kSeries, kMonday + 2s, {}, at_time(40s));
  EXPECT_EQ(touched, (SeenStep{kSeries, kMonday + 2s, 40s, kMonday, 20s})) << "it is not complete for now";
  const SeenStep rewritten = see_step(touched, kSeries, kMonday + 2s, kMonday - 24h, at_time(50s));
  EXPECT_EQ(rewritten.completed_at, 50s) << "though it is dated before";
  const SeenStep moved = see_step(complete, kSeries + 1, kMonday + 1s, kMonday, at_time(60s));
  EXPECT_EQ(moved, (SeenStep{kSeries + 1, kMonday + 1s, 60s, kMonday, 60s})) << "it is new in its series";
}

TEST(SeeStepTest, WhatIsDatedAMomentAgoCompletedThen) {
  const auto completed_at = [](std::chrono::seconds age, StoreTime now) {
    return see_step({}, kSeries, kMonday, kMonday - age, {kMonday, now}).completed_at;
  };
  EXPECT_EQ(completed_at(20s, 100s), 80s);
  EXPECT_EQ(completed_at(0s, 100s), 100s);
  EXPECT_EQ(completed_at(20s, 10s), 1ns) << "before the store was made";
  EXPECT_EQ(completed_at(60s, 100s), 100s) << "it was copied, perhaps, with its times";
  EXPECT_EQ(completed_at(-1s, 100s), 100s) << "it is of the future";
}

TEST_F(SeenStepTest, ItIsKept) {
  const InodeNumber step = make_folder("/steps/global_step1");
  ASSERT_FALSE(seen_step(*store_, step).value());
  const StoreClock clock = StoreClock::load(store_->index()).value();
  const SeenStep seen = see_step({}, at("/steps"), kMonday, kMonday, at_time(clock.now()));
  ASSERT_TRUE(note_seen(*store_, clock, {{step, seen}, {step + 1000, seen}}));
  reopen();
  EXPECT_EQ(seen_step(*store_, step).value(), seen);
  EXPECT_GT(StoreClock::load(store_->index()).value().now(), seen.changed_at);
}

#ifdef CKPTFS_FAULT_POINTS
TEST_F(SeenStepTest, TheClockOnlyCountsUp) {
  const auto boot = [this](const char* id, const char* seconds) {
    io::set_fault("boot_id", id);
    io::set_fault("since_boot", seconds);
    return StoreClock::load(store_->index()).value();
  };
  const StoreClock first = boot("first", "1000");
  const StoreTime begin = first.now();
  io::set_fault("since_boot", "1010");
  EXPECT_EQ(first.now(), begin + 10s);
  io::set_fault("since_boot", "900");
  EXPECT_EQ(first.now(), begin) << "whatever it is told";
  io::set_fault("since_boot", "1010");
  ASSERT_TRUE(first.note(store_->index()));
  EXPECT_EQ(boot("first", "1500").now(), begin + 500s) << "it was not mounted for a while";
  const StoreClock second = boot("second", "30");
  EXPECT_EQ(second.now(), begin + 40s) << "the machine was off for a while, and what was not noted is lost";
  ASSERT_TRUE(note_seen(*store_, second, {{at("/steps"), {}}}));
  EXPECT_EQ(boot("second", "40").now(), begin + 50s);
  io::set_fault("boot_id", "");
  io::set_fault("since_boot", "");
}
#endif

}  // namespace
}  // namespace ckptfs::meta

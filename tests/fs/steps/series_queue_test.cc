// Whose series are looked at when: nobody waits for another user's.
#include "fs/steps/series_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace ckptfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Numbers = std::vector<meta::InodeNumber>;

constexpr uint32_t kLarge = 5001, kSmall = 5002;  // owners

class SeriesQueueTest : public testing::Test {
 protected:
  // Looks at all series that are due, each of which takes so long. Returns them.
  Numbers look(const std::map<meta::InodeNumber, SeriesQueue::Clock::duration>& takes) {
    Numbers looked;
    while (const auto series = queue_.next(now_)) {
      looked.push_back(*series);
      now_ += takes.at(*series);
      queue_.done(*series, takes.at(*series));
    }
    return looked;
  }

  SeriesQueue queue_{seconds(5)};
  SeriesQueue::Clock::time_point now_{seconds(1000)};
};

TEST_F(SeriesQueueTest, AfterALongLookItsOwnerRestsAndNobodyElse) {
  queue_.add(10, kLarge);
  queue_.add(20, kSmall);
  const std::map<meta::InodeNumber, SeriesQueue::Clock::duration> takes{{10, seconds(3)}, {20, milliseconds(2)}};
  EXPECT_EQ(look(takes), (Numbers{10, 20}));
  size_t small = 0;
  const auto end = now_ + seconds(150 - 5);
  for (; now_ < end; now_ += seconds(5)) {
    EXPECT_EQ(look(takes), small++ == 0 ? Numbers{} : Numbers{20});
  }
  now_ += seconds(5);
  EXPECT_EQ(look(takes).size(), 2U) << "it has rested long enough";
}

TEST_F(SeriesQueueTest, OwnersTakeTurnsSoThatManySeriesDelayNobody) {
  std::map<meta::InodeNumber, SeriesQueue::Clock::duration> takes{{2000, milliseconds(1)}};
  for (meta::InodeNumber series = 1; series <= 100; ++series) {
    queue_.add(series, kLarge);
    takes[series] = milliseconds(100);
  }
  ASSERT_EQ(queue_.next(now_), 1U);
  queue_.add(2000, kSmall);
  queue_.done(1, takes[1]);
  EXPECT_EQ(queue_.next(now_), 2000U);
  queue_.done(2000, takes[2000]);
  // The small one comes again in the middle of the other's round.
  const Numbers looked = look(takes);
  EXPECT_EQ(looked.size(), 100U);
  EXPECT_EQ(std::count(looked.begin(), looked.end(), 2000U), 1);
  now_ += 50 * seconds(10) - milliseconds(10);
  EXPECT_EQ(look(takes), Numbers{2000}) << "the round as a whole is what the rest follows";
}

TEST_F(SeriesQueueTest, AWakeEndsShortRestsAndShortensLongOnes) {
  queue_.add(10, kLarge);
  queue_.add(20, kSmall);
  const std::map<meta::InodeNumber, SeriesQueue::Clock::duration> takes{{10, seconds(8)}, {20, milliseconds(2)}};
  look(takes);
  queue_.wake();
  EXPECT_EQ(look(takes), Numbers{20}) << "who wakes it again and again has it for half of the time, no more";
  now_ += seconds(8);
  EXPECT_EQ(look(takes), (Numbers{10, 20}));
}

TEST_F(SeriesQueueTest, AWakeWithinARoundHoldsForItsEnd) {
  queue_.add(10, kLarge);
  queue_.add(11, kLarge);
  ASSERT_EQ(queue_.next(now_), 10U);
  queue_.done(10, seconds(6));
  queue_.wake();
  ASSERT_EQ(queue_.next(now_), 11U);
  queue_.done(11, seconds(1));
  EXPECT_EQ(queue_.next(now_), std::nullopt);
  now_ += seconds(7);
  EXPECT_EQ(look({{10, seconds(6)}, {11, seconds(1)}}), (Numbers{10, 11}));
  now_ += seconds(300);
  EXPECT_EQ(queue_.next(now_), std::nullopt);
}

TEST_F(SeriesQueueTest, ARoundIsOverOnceAllWereLookedAt) {
  const std::map<meta::InodeNumber, SeriesQueue::Clock::duration> takes{
      {10, seconds(3)}, {20, milliseconds(2)}, {30, milliseconds(2)}};
  EXPECT_EQ(look(takes), Numbers{});
  EXPECT_EQ(queue_.take_rounds(), 1U) << "there is nothing to look at";
  queue_.add(10, kLarge);
  queue_.add(20, kSmall);
  queue_.add(30, kSmall);
  look(takes);
  EXPECT_GE(queue_.take_rounds(), 1U);
  for (int i = 0; i < 10; ++i, now_ += seconds(5)) look(takes);
  EXPECT_EQ(queue_.take_rounds(), 0U) << "the large one rests";
  queue_.remove(10);
  EXPECT_EQ(queue_.take_rounds(), 1U);
  now_ += seconds(5);
  EXPECT_EQ(look(takes), (Numbers{20, 30}));
  EXPECT_EQ(queue_.take_rounds(), 1U);
  queue_.remove(20);
  queue_.add(30, kLarge);  // it was given away
  now_ += seconds(5);
  EXPECT_EQ(look(takes), Numbers{30});
}

TEST_F(SeriesQueueTest, WhatIsUnfinishedComesAgainAfterTheOthers) {
  queue_.add(10, kLarge);
  queue_.add(20, kSmall);
  ASSERT_EQ(queue_.next(now_), 10U);
  queue_.done(10, seconds(1), true);
  ASSERT_EQ(queue_.next(now_), 20U);
  queue_.done(20, milliseconds(1));
  EXPECT_EQ(queue_.take_rounds(), 0U);
  ASSERT_EQ(queue_.next(now_), 10U);
  queue_.done(10, seconds(1));
  EXPECT_EQ(queue_.take_rounds(), 1U);
  EXPECT_EQ(queue_.next(now_), std::nullopt);
  now_ += seconds(99);
  ASSERT_EQ(queue_.next(now_), 20U);
  queue_.done(20, milliseconds(1));
  EXPECT_EQ(queue_.next(now_), std::nullopt);
  now_ += seconds(1);
  EXPECT_EQ(queue_.next(now_), 10U);
}

TEST_F(SeriesQueueTest, WhoTakesSeriesAwayAndAddsThemDoesNotRestLess) {
  queue_.add(10, kLarge);
  queue_.add(11, kLarge);
  ASSERT_EQ(queue_.next(now_), 10U);
  now_ += seconds(3);
  queue_.done(10, seconds(3));
  ASSERT_EQ(queue_.next(now_), 11U);
  queue_.remove(11);
  queue_.done(11, milliseconds(1));
  EXPECT_EQ(queue_.next(now_), std::nullopt);
  queue_.add(11, kLarge);
  now_ += seconds(140);
  EXPECT_EQ(queue_.next(now_), std::nullopt);
}

}  // namespace
}  // namespace ckptfs::fs

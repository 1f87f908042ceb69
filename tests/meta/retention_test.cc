// The policy's decisions, one by one and against a slow reference that does what docs/rotation.md says, word by word.
#include "meta/steps/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace ckptfs::meta {
namespace {

using formats::Completeness;
using namespace std::chrono_literals;

constexpr WallTime kNow{1'000'000s};
constexpr StoreTime kStoreNow = 500'000s;
constexpr Moment kMoment{kNow, kStoreNow};

StepFacts step(uint64_t number, std::chrono::seconds age, Completeness completeness = Completeness::complete) {
  StepFacts facts;
  facts.tag = "step_" + std::to_string(number);
  facts.number = number;
  facts.completed = kNow - age;
  facts.seen = kStoreNow - age;
  facts.completeness = completeness;
  return facts;
}

// Steps 10, 20, ..., of which the last is the newest.
std::vector<StepFacts> steps(size_t count) {
  std::vector<StepFacts> all;
  for (size_t at = 1; at <= count; ++at) all.push_back(step(10 * at, std::chrono::hours(count - at)));
  return all;
}

Result<Room> no_room(const std::vector<size_t>&) { return Error(EIO, "nobody asked for room"); }

std::vector<uint64_t> numbers_staying(const Judgement& judgement, const std::vector<StepFacts>& all) {
  std::vector<uint64_t> numbers;
  for (size_t at = 0; at < all.size(); ++at) {
    if (judgement.decisions[at].stays) numbers.push_back(all[at].number);
  }
  return numbers;
}

std::vector<uint64_t> staying(const PolicyText& rules, const std::vector<StepFacts>& all,
                              const RoomWithout& room = no_room) {
  const auto policy = parse_policy(rules);
  EXPECT_TRUE(policy) << policy.error().message();
  const auto judgement = judge(policy.value(), all, kMoment, room);
  EXPECT_TRUE(judgement) << judgement.error().message();
  return numbers_staying(judgement.value(), all);
}

using Numbers = std::vector<uint64_t>;

TEST(RetentionTest, WithoutAKeepRuleAllStay) {
  EXPECT_EQ(staying({}, steps(3)), (Numbers{10, 20, 30}));
  EXPECT_EQ(staying({{"keep_partial", "1s"}}, steps(3)), (Numbers{10, 20, 30}));
}

TEST(RetentionTest, EachRuleKeepsItsOwn) {
  EXPECT_EQ(staying({{"keep_last", "2"}}, steps(5)), (Numbers{40, 50}));
  EXPECT_EQ(staying({{"keep_every", "20"}}, steps(5)), (Numbers{20, 40, 50}));  // also keeps the newest
  EXPECT_EQ(staying({{"keep_for", "2h"}}, steps(5)), (Numbers{40, 50}));        // exactly 2 h old counts as old
  EXPECT_EQ(staying({{"keep_last", "1"}, {"keep_every", "20"}}, steps(5)), (Numbers{20, 40, 50}));
}

// A thinned step counts for the keep rules, but no training can resume from it.
TEST(RetentionTest, WeightsAreNeverTheNewestCompleteStep) {
  std::vector<StepFacts> all = steps(5);
  for (const size_t at : {1U, 3U, 4U}) all[at].completeness = Completeness::weights;
  EXPECT_EQ(staying({{"keep_last", "2"}}, all), (Numbers{30, 40, 50}));
  EXPECT_EQ(staying({{"keep_every", "20"}}, all), (Numbers{20, 30, 40}));
  EXPECT_EQ(staying({}, all), (Numbers{10, 20, 30, 40, 50}));
  const auto judgement = judge(parse_policy({{"keep_last", "2"}}).value(), all, kMoment, no_room);
  ASSERT_TRUE(judgement);
  EXPECT_EQ(judgement.value().decisions[2].reasons, (std::vector<Reason>{Reason::newest}));
  EXPECT_EQ(judgement.value().decisions[4].reasons, (std::vector<Reason>{Reason::keep_last}));
}

Numbers numbers_thinned(const PolicyText& rules, const std::vector<StepFacts>& all) {
  const auto judgement = judge(parse_policy(rules).value(), all, kMoment, no_room);
  EXPECT_TRUE(judgement);
  Numbers numbers;
  for (size_t at = 0; at < all.size(); ++at) {
    const Decision& decision = judgement.value().decisions[at];
    EXPECT_TRUE(!decision.thins || (decision.stays && decision.full_because.empty()));
    if (decision.thins) numbers.push_back(all[at].number);
  }
  return numbers;
}

TEST(RetentionTest, WhatIsNotKeptFullIsThinned) {
  EXPECT_EQ(numbers_thinned({}, steps(5)), Numbers{});
  EXPECT_EQ(numbers_thinned({{"keep_full", "2"}}, steps(5)), (Numbers{10, 20, 30}));
  EXPECT_EQ(numbers_thinned({{"keep_full", "2h"}}, steps(5)), (Numbers{10, 20, 30}));
  EXPECT_EQ(numbers_thinned({{"keep_full", "1s"}}, steps(2)),
            (Numbers{10}));  // the newest stays full, whatever its age
  EXPECT_EQ(numbers_thinned({{"keep_full", "2"}, {"keep_last", "3"}}, steps(5)), (Numbers{30}));
  std::vector<StepFacts> all = steps(6);
  all[0].pinned = true;
  all[1].latest = true;
  all[2].in_use = true;
  all[4].completeness = Completeness::weights;
  EXPECT_EQ(numbers_thinned({{"keep_full", "1"}}, all), (Numbers{40}));
  EXPECT_EQ(numbers_thinned({{"keep_full", "2"}}, all), Numbers{});  // thin steps do not count among the full ones
  const auto judgement = judge(parse_policy({{"keep_full", "1"}}).value(), all, kMoment, no_room);
  EXPECT_EQ(judgement.value().decisions[0].full_because, "pinned");
  EXPECT_EQ(judgement.value().decisions[1].full_because, "latest");
  EXPECT_EQ(judgement.value().decisions[5].full_because, "keep_full");
}

TEST(RetentionTest, MaxBytesWaitsForThinning) {
  const RoomWithout room = [](const auto& gone) { return Result<Room>(Room{5 - gone.size(), 0}); };
  const Policy policy = parse_policy({{"keep_full", "2"}, {"max_bytes", "4"}}).value();
  std::vector<StepFacts> all = steps(5);
  const auto gone = [&] {
    const auto judgement = judge(policy, all, kMoment, room);
    return std::count_if(judgement.value().decisions.begin(), judgement.value().decisions.end(),
                         [](const Decision& one) { return !one.stays; });
  };
  EXPECT_EQ(gone(), 0);
  all[0].completeness = all[1].completeness = Completeness::weights;
  EXPECT_EQ(gone(), 0);
  all[2].not_thinned = "its view has problems";
  EXPECT_EQ(gone(), 1);
  EXPECT_EQ(judge(policy, all, kMoment, room).value().decisions[2].full_because, "its view has problems");
}

TEST(RetentionTest, MinFreeWaitsForThinningWhileHalfOfItIsFree) {
  uint64_t free = 60;
  const RoomWithout room = [&](const auto& gone) { return Result<Room>(Room{0, free + 10 * gone.size()}); };
  std::vector<StepFacts> all = steps(5);
  const PolicyText rules{{"keep_full", "2"}, {"min_free", "100"}};
  EXPECT_EQ(staying(rules, all, room), (Numbers{10, 20, 30, 40, 50}));
  free = 30;
  EXPECT_EQ(staying(rules, all, room), (Numbers{30, 40, 50})) << "50 are free without two of them";
  free = 60;
  for (const size_t at : {0U, 1U, 2U}) all[at].completeness = Completeness::weights;
  EXPECT_EQ(staying(rules, all, room), (Numbers{50})) << "nothing is left to thin";
}

// A run that starts over, an evaluation that writes into an old step, and a copy of one look alike.
TEST(RetentionTest, WhatCompletedLastAndTheHighestNumberStay) {
  std::vector<StepFacts> all = steps(5);
  all[0].completed = kNow + 1s;
  all[0].seen = kStoreNow + 1s;
  EXPECT_EQ(staying({{"keep_last", "1"}}, all), (Numbers{10, 50}));
  EXPECT_EQ(staying({{"keep_last", "2"}}, all), (Numbers{10, 40, 50}));
  EXPECT_EQ(numbers_thinned({{"keep_full", "1"}}, all), (Numbers{20, 30, 40}));
  const RoomWithout never = [](const auto&) -> Result<Room> { return Room{1000, 0}; };
  EXPECT_EQ(staying({{"max_bytes", "1"}}, all, never), (Numbers{10, 50}));
}

// The clock was a day ahead and has been corrected, so what is written now has earlier dates than what was written
// then.
TEST(RetentionTest, AClockThatWasAheadTakesNoNewStep) {
  std::vector<StepFacts> all = steps(6);
  for (size_t at = 0; at < 3; ++at) all[at].completed += 24h;
  EXPECT_EQ(staying({{"keep_last", "2"}}, all), (Numbers{50, 60}));
  EXPECT_EQ(staying({{"keep_last", "3"}}, all), (Numbers{40, 50, 60}));
  EXPECT_EQ(staying({{"keep_for", "1h"}}, all), (Numbers{10, 20, 30, 60}));
  const auto judgement = judge(parse_policy({{"keep_last", "2"}}).value(), all, kMoment, no_room);
  ASSERT_TRUE(judgement);
  ASSERT_EQ(judgement.value().warnings.size(), 1u);
  EXPECT_NE(judgement.value().warnings[0].find("future"), std::string::npos) << judgement.value().warnings[0];
}

TEST(RetentionTest, AClockThatJumpsAheadMakesNothingOld) {
  std::vector<StepFacts> all = steps(4);
  all[0].completeness = Completeness::incomplete;
  const PolicyText rules{{"keep_for", "7d"}, {"keep_partial", "1d"}};
  const auto judgement = judge(parse_policy(rules).value(), all, {kNow + 30 * 24h, kStoreNow}, no_room);
  ASSERT_TRUE(judgement);
  EXPECT_EQ(numbers_staying(judgement.value(), all), (Numbers{10, 20, 30, 40}));
}

TEST(RetentionTest, WhatIsCopiedInWithItsTimesIsNew) {
  std::vector<StepFacts> all = steps(4);
  all[0].completed -= 90 * 24h;
  all[0].seen = kStoreNow;
  EXPECT_EQ(staying({{"keep_last", "2"}}, all), (Numbers{10, 30, 40}));
  EXPECT_EQ(staying({{"keep_for", "90m"}}, all), (Numbers{10, 30, 40}));
  // Caps first remove steps that are old by both criteria.
  const RoomWithout room = [](const std::vector<size_t>& gone) -> Result<Room> {
    return Room{400 - 100 * gone.size(), 0};
  };
  EXPECT_EQ(staying({{"max_bytes", "300"}}, all, room), (Numbers{10, 30, 40}));
}

TEST(RetentionTest, TheBestByAMetric) {
  std::vector<StepFacts> all = steps(5);
  all[0].metric = 0.5;
  all[1].metric = 0.1;
  all[2].metric = std::numeric_limits<double>::quiet_NaN();
  all[3].metric = 0.5;
  EXPECT_EQ(staying({{"keep_best", "loss:min:1"}}, all), (Numbers{20, 50}));
  EXPECT_EQ(staying({{"keep_best", "loss:max:1"}}, all), (Numbers{40, 50}));  // of equal ones the newer is kept
  EXPECT_EQ(staying({{"keep_best", "loss:max:9"}}, all), (Numbers{10, 20, 40, 50}));
}

TEST(RetentionTest, AMetricThatNoStepHasKeepsAll) {
  const std::vector<StepFacts> all = steps(3);
  const auto judgement = judge(parse_policy({{"keep_best", "los:min:1"}}).value(), all, kMoment, no_room);
  ASSERT_TRUE(judgement);
  EXPECT_EQ(numbers_staying(judgement.value(), all), (Numbers{10, 20, 30}));
  EXPECT_EQ(judgement.value().warnings.size(), 1u);
}

TEST(RetentionTest, WhatIsProtectedStays) {
  std::vector<StepFacts> all = steps(5);
  all[0].pinned = true;
  all[1].latest = true;
  all[2].in_use = true;
  EXPECT_EQ(staying({{"keep_last", "1"}}, all), (Numbers{10, 20, 30, 50}));
  const RoomWithout never = [](const auto&) -> Result<Room> { return Room{1000, 0}; };
  EXPECT_EQ(staying({{"max_bytes", "1"}}, all, never), (Numbers{10, 20, 30, 50}));
  all[3].out_of_reach = true;
  EXPECT_EQ(staying({{"keep_last", "1"}}, all), (Numbers{10, 20, 30, 40, 50}));
}

TEST(RetentionTest, TheNewestThatAreNotPushedYetStay) {
  std::vector<StepFacts> all = steps(6);
  for (const size_t at : {0U, 1U, 2U, 3U}) all[at].unpushed = true;
  EXPECT_EQ(staying({{"keep_last", "1"}}, all), (Numbers{30, 40, 60}));
  EXPECT_EQ(staying({{"keep_last", "1"}, {"hold_unpushed", "3"}}, all), (Numbers{20, 30, 40, 60}));
  EXPECT_EQ(staying({{"keep_last", "1"}, {"hold_unpushed", "0"}}, all), (Numbers{60}));
  const RoomWithout never = [](const auto&) -> Result<Room> { return Room{1000, 0}; };
  EXPECT_EQ(staying({{"max_bytes", "1"}}, all, never), (Numbers{30, 40, 60}));
  EXPECT_EQ(numbers_thinned({{"keep_full", "1"}}, all), (Numbers{10, 20, 50}));
  const auto judgement = judge(parse_policy({{"keep_full", "1"}}).value(), all, kMoment, no_room);
  EXPECT_EQ(judgement.value().decisions[2].full_because, "not pushed yet");
  // A machine without rank 0 cannot tell whether its steps are complete.
  for (const size_t at : {0U, 1U, 2U, 3U}) all[at].completeness = Completeness::incomplete;
  EXPECT_EQ(staying({{"keep_partial", "1s"}}, all), (Numbers{30, 40, 50, 60}));
  all[0].seen = kStoreNow;
  EXPECT_EQ(staying({{"keep_partial", "1s"}}, all), (Numbers{10, 30, 40, 50, 60})) << "it was copied in";
}

TEST(RetentionTest, WithoutARemoteNothingIsHeld) {
  EXPECT_EQ(staying({{"keep_last", "1"}, {"hold_unpushed", "5"}}, steps(4)), (Numbers{40}));
}

TEST(RetentionTest, WhatCannotBeJudgedIsNeitherCountedNorRemoved) {
  std::vector<StepFacts> all = steps(4);
  all[3].completeness = Completeness::unknown;
  EXPECT_EQ(staying({{"keep_last", "1"}}, all), (Numbers{30, 40}));
  EXPECT_EQ(staying({{"keep_last", "1"}, {"keep_partial", "1s"}}, all), (Numbers{30, 40}));
}

TEST(RetentionTest, UnknownOnesGoByTheirOwnRuleOnly) {
  std::vector<StepFacts> all = steps(4);
  all[0].completeness = all[1].completeness = all[3].completeness = Completeness::unknown;
  EXPECT_EQ(staying({{"keep_last", "1"}, {"keep_partial", "1s"}}, all), (Numbers{10, 20, 30, 40}));
  EXPECT_EQ(staying({{"keep_unknown", "1h"}}, all), (Numbers{30, 40})) << "what is newer than the complete one stays";
  all[0].untold = true;  // it is damaged
  all[1].pinned = true;
  EXPECT_EQ(staying({{"keep_unknown", "1h"}}, all), (Numbers{10, 20, 30, 40}));
  all[0].untold = all[1].pinned = false;
  all[1].seen = kStoreNow;
  EXPECT_EQ(staying({{"keep_unknown", "1h"}}, all), (Numbers{20, 30, 40}));
}

TEST(RetentionTest, IncompleteOnesGoByTheirOwnRuleOnly) {
  std::vector<StepFacts> all = steps(4);
  all[0].completeness = all[3].completeness = Completeness::incomplete;
  EXPECT_EQ(staying({{"keep_last", "1"}}, all), (Numbers{10, 30, 40}));
  EXPECT_EQ(staying({{"keep_partial", "1h"}}, all), (Numbers{20, 30, 40}));
  all[0].in_use = true;
  EXPECT_EQ(staying({{"keep_partial", "1h"}}, all), (Numbers{10, 20, 30, 40}));
  all[0].in_use = false;
  all[1].completed = kNow + 1s;  // an evaluation has written to it since the last save was cut off
  all[1].seen = kStoreNow + 1s;
  EXPECT_EQ(staying({{"keep_partial", "1s"}}, all), (Numbers{20, 30, 40}));
  all[1].completeness = all[2].completeness = Completeness::incomplete;
  EXPECT_EQ(staying({{"keep_partial", "1s"}}, all), (Numbers{10, 20, 30, 40})) << "there is nothing better";
}

TEST(RetentionTest, CapsTakeTheOldestAndNoMoreThanItNeeds) {
  const RoomWithout room = [](const std::vector<size_t>& gone) -> Result<Room> {
    return Room{500 - 100 * gone.size(), 50 + 100 * gone.size()};
  };
  EXPECT_EQ(staying({{"max_bytes", "300"}}, steps(5), room), (Numbers{30, 40, 50}));
  EXPECT_EQ(staying({{"min_free", "151"}}, steps(5), room), (Numbers{30, 40, 50}));
  EXPECT_EQ(staying({{"max_bytes", "500"}}, steps(5), room), (Numbers{10, 20, 30, 40, 50}));
  EXPECT_EQ(staying({{"max_bytes", "300"}, {"keep_last", "5"}}, steps(5), room), (Numbers{30, 40, 50}));
  // The steps that the keep rules remove make room, too.
  EXPECT_EQ(staying({{"max_bytes", "300"}, {"keep_last", "3"}}, steps(5), room), (Numbers{30, 40, 50}));
}

TEST(RetentionTest, ACapThatCannotBeMetWarns) {
  const RoomWithout room = [](const std::vector<size_t>& gone) -> Result<Room> {
    return Room{500 - 100 * gone.size(), 0};
  };
  const std::vector<StepFacts> all = steps(5);
  const auto judgement = judge(parse_policy({{"max_bytes", "50"}}).value(), all, kMoment, room);
  ASSERT_TRUE(judgement);
  EXPECT_EQ(numbers_staying(judgement.value(), all), (Numbers{50}));
  EXPECT_EQ(judgement.value().warnings.size(), 1u);
}

// --- comparison with the reference

struct World {
  std::vector<StepFacts> steps;
  std::vector<uint64_t> bytes;
  uint64_t free = 0;

  Room without(const std::vector<bool>& gone) const {
    Room room{0, free};
    for (size_t at = 0; at < bytes.size(); ++at) (gone[at] ? room.free : room.series) += bytes[at];
    return room;
  }
};

std::vector<bool> slow_reference(const Policy& policy, const World& world) {
  const auto& all = world.steps;
  std::vector<bool> gone(all.size(), false), safe(all.size(), false);
  bool any_metric = false;
  for (const StepFacts& facts : all) any_metric |= facts.completeness == Completeness::complete && facts.metric;
  const auto complete = [&](size_t at) { return all[at].completeness == Completeness::complete; };
  const auto newer_by_time = [&](size_t a, size_t b) {
    if (all[a].completed != all[b].completed) return all[a].completed > all[b].completed;
    return all[a].number != all[b].number ? all[a].number > all[b].number : all[a].tag > all[b].tag;
  };
  const auto seen_later = [&](size_t a, size_t b) {
    return all[a].seen != all[b].seen ? all[a].seen > all[b].seen : newer_by_time(a, b);
  };
  const auto higher = [&](size_t a, size_t b) {
    return all[a].number != all[b].number ? all[a].number > all[b].number : seen_later(a, b);
  };
  std::vector<size_t> newer_ones(all.size(), 0);
  for (size_t at = 0; at < all.size(); ++at) {
    size_t by_number = 0, by_sight = 0;
    for (size_t other = 0; other < all.size(); ++other) {
      if (other == at || !complete(other)) continue;
      by_number += higher(other, at);
      by_sight += seen_later(other, at);
    }
    newer_ones[at] = std::min(by_number, by_sight);
  }
  const auto newer = [&](size_t a, size_t b) {
    return newer_ones[a] != newer_ones[b] ? newer_ones[a] < newer_ones[b] : seen_later(a, b);
  };
  const auto young = [&](size_t at, std::chrono::seconds age) {
    return kNow - all[at].completed < age || kStoreNow - all[at].seen < age;
  };
  for (size_t at = 0; at < all.size(); ++at) {
    const bool newest = complete(at) && newer_ones[at] == 0;
    size_t better_ones = 0;
    for (size_t other = 0; other < all.size(); ++other) {
      if (other == at || !complete(other)) continue;
      if (!policy.keep_best || !all[other].metric || !all[at].metric) continue;
      const double mine = *all[at].metric, its = *all[other].metric;
      const bool better = policy.keep_best->smallest ? its < mine : its > mine;
      if (better || (its == mine && newer(other, at))) ++better_ones;
    }
    size_t later_by_number = 0, later_by_sight = 0;  // unpushed ones
    for (size_t other = 0; other < all.size(); ++other) {
      if (other == at || !all[other].unpushed) continue;
      later_by_number += higher(other, at);
      later_by_sight += seen_later(other, at);
    }
    const bool held = all[at].unpushed && std::min(later_by_number, later_by_sight) < policy.hold_unpushed.value_or(2);
    safe[at] = newest || all[at].pinned || all[at].latest || all[at].in_use || all[at].untold || held;
    bool kept = false;
    if (complete(at)) {
      const bool any_rule = policy.keep_last || policy.keep_every || policy.keep_for || policy.keep_best;
      if (!any_rule) kept = true;
      if (policy.keep_last && newer_ones[at] < *policy.keep_last) kept = true;
      if (policy.keep_every && all[at].number % *policy.keep_every == 0) kept = true;
      if (policy.keep_for && young(at, *policy.keep_for)) kept = true;
      if (policy.keep_best && all[at].metric && better_ones < policy.keep_best->count) kept = true;
      if (policy.keep_best && !any_metric) kept = true;
    } else {
      bool seen_since = false, reached = false;
      for (size_t other = 0; other < all.size(); ++other) {
        seen_since |= complete(other) && seen_later(other, at);
        reached |= complete(other) && higher(other, at);
      }
      const auto& until = all[at].completeness == Completeness::incomplete ? policy.keep_partial : policy.keep_unknown;
      kept = !until || !seen_since || !reached || young(at, *until);
    }
    gone[at] = !kept && !safe[at];
  }
  const auto is_over = [&] {
    const Room room = world.without(gone);
    return std::pair{policy.max_bytes && room.series > *policy.max_bytes,
                     policy.min_free && room.free < *policy.min_free};
  };
  const auto remove_oldest = [&] {
    size_t oldest = all.size();
    for (size_t at = 0; at < all.size(); ++at) {
      if (!complete(at) || gone[at] || safe[at]) continue;
      if (oldest == all.size() || newer(oldest, at)) oldest = at;
    }
    if (oldest == all.size()) return false;
    gone[oldest] = true;
    return true;
  };
  while (is_over().first && remove_oldest()) {
  }
  while (is_over().second && remove_oldest()) {
  }
  return gone;
}

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random_); }
  bool one_in(uint64_t times) { return below(times) == 0; }

 private:
  std::mt19937_64 random_;
};

World random_world(Dice& dice) {
  World world;
  const size_t count = dice.below(14);
  for (size_t at = 0; at < count; ++at) {
    const auto completeness = dice.one_in(4)   ? Completeness::incomplete
                              : dice.one_in(6) ? Completeness::unknown
                                               : Completeness::complete;
    StepFacts facts = step(dice.below(30), std::chrono::seconds(dice.below(20)), completeness);
    facts.tag += "-" + std::to_string(at);
    if (dice.one_in(3)) facts.seen = kStoreNow - std::chrono::seconds(dice.below(20));
    facts.pinned = dice.one_in(9);
    facts.latest = dice.one_in(9);
    facts.in_use = dice.one_in(9);
    facts.untold = dice.one_in(15);
    facts.unpushed = dice.one_in(3);
    if (!dice.one_in(3)) facts.metric = static_cast<double>(dice.below(5));
    world.steps.push_back(facts);
    world.bytes.push_back(dice.below(4) * 10);
  }
  world.free = dice.below(100);
  return world;
}

PolicyText random_rules(Dice& dice) {
  PolicyText rules;
  const auto maybe = [&](const char* rule, const std::string& value) {
    if (dice.one_in(3)) rules[rule] = value;
  };
  maybe("keep_last", std::to_string(1 + dice.below(4)));
  maybe("keep_every", std::to_string(1 + dice.below(6)));
  maybe("keep_for", std::to_string(1 + dice.below(15)) + "s");
  maybe("keep_best", std::string("loss:") + (dice.one_in(2) ? "min:" : "max:") + std::to_string(1 + dice.below(3)));
  maybe("keep_partial", std::to_string(1 + dice.below(15)) + "s");
  maybe("keep_unknown", std::to_string(1 + dice.below(15)) + "s");
  maybe("max_bytes", std::to_string(1 + dice.below(150)));
  maybe("min_free", std::to_string(1 + dice.below(200)));
  maybe("hold_unpushed", std::to_string(dice.below(4)));
  return rules;
}

TEST(RetentionTest, AsASlowReferenceSays) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Dice dice(seed);
  for (int round = 0; round < 5000; ++round) {
    const World world = random_world(dice);
    const auto policy = parse_policy(random_rules(dice));
    ASSERT_TRUE(policy) << policy.error().message();
    const RoomWithout room = [&](const std::vector<size_t>& without) -> Result<Room> {
      std::vector<bool> gone(world.steps.size());
      for (const size_t at : without) gone[at] = true;
      return world.without(gone);
    };
    const auto judgement = judge(policy.value(), world.steps, kMoment, room);
    ASSERT_TRUE(judgement);
    const std::vector<bool> gone = slow_reference(policy.value(), world);
    for (size_t at = 0; at < world.steps.size(); ++at) {
      ASSERT_EQ(judgement.value().decisions[at].stays, !gone[at]) << "round " << round << ", step " << at;
      ASSERT_FALSE(judgement.value().decisions[at].reasons.empty());
    }
  }
}

TEST(PolicyTest, WhatRulesTake) {
  const auto policy = parse_policy({{"keep_last", "3"},
                                    {"keep_for", "7d"},
                                    {"keep_best", "eval:loss:min:2"},
                                    {"max_bytes", "2T"},
                                    {"min_free", "4096"},
                                    {"seal_after", "90m"},
                                    {"set_aside", "1"},
                                    {"keep_full", "2"},
                                    {"thin_to", "bf16"},
                                    {"push", "manual"},
                                    {"hold_unpushed", "0"}});
  ASSERT_TRUE(policy) << policy.error().message();
  EXPECT_EQ(policy.value().keep_for, std::chrono::hours(7 * 24));
  EXPECT_EQ(policy.value().keep_best->metric, "eval:loss");
  EXPECT_TRUE(policy.value().keep_best->smallest);
  EXPECT_EQ(policy.value().max_bytes, uint64_t{2} << 40);
  EXPECT_EQ(policy.value().min_free, 4096u);
  EXPECT_EQ(policy.value().seal_after, std::chrono::minutes(90));
  EXPECT_TRUE(policy.value().set_aside);
  EXPECT_EQ(policy.value().keep_full->count, 2u);
  EXPECT_FALSE(policy.value().keep_full->age);
  EXPECT_EQ(parse_policy({{"keep_full", "7d"}}).value().keep_full->age, std::chrono::hours(7 * 24));
  EXPECT_EQ(policy.value().thin_to, "bf16");
  EXPECT_EQ(policy.value().push, "manual");
  EXPECT_EQ(policy.value().hold_unpushed, 0u);
}

TEST(PolicyTest, BadValuesAreRefusedInWords) {
  const std::vector<std::pair<std::string, std::string>> bad = {{"keep_last", "0"},
                                                                {"keep_last", "-1"},
                                                                {"keep_last", "3 "},
                                                                {"keep_last", "many"},
                                                                {"keep_every", "0"},
                                                                {"keep_for",
                                                                 "7"
                                                                 "x"},
                                                                {"keep_for", "d"},
                                                                {"keep_for", "99999999w"},
                                                                {"keep_best", "loss"},
                                                                {"keep_best", "loss:low:1"},
                                                                {"keep_best", ":min:1"},
                                                                {"keep_best", "loss:min:0"},
                                                                {"max_bytes", "0"},
                                                                {"max_bytes", "2X"},
                                                                {"min_free", "half"},
                                                                {"set_aside", "0"},
                                                                {"keep_full", "0"},
                                                                {"keep_full", "x"},
                                                                {"thin_to", "int8"},
                                                                {"push", "always"},
                                                                {"hold_unpushed", "-1"},
                                                                {"hold_unpushed", "two"},
                                                                {"seal_after", "soon"}};
  for (const auto& [rule, value] : bad) {
    const auto policy = parse_policy({{rule, value}});
    ASSERT_FALSE(policy) << rule << "=" << value;
    EXPECT_EQ(policy.error().errno_value(), EINVAL);
    EXPECT_NE(policy.error().message().find(rule), std::string::npos) << policy.error().message();
  }
  EXPECT_FALSE(parse_policy({{"keep_first", "3"}}));
}

}  // namespace
}  // namespace ckptfs::meta

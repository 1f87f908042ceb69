#include "meta/remote/save_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Milliseconds kTick{1};

SaveFacts agreed(const std::string& attempt) { return {attempt, {}}; }
SaveFacts lived(const SaveLife& life) { return {"", life}; }

// Both ways, so that neither slot joins what the other would not. Empty: they are of one save.
std::string why_not(const SaveLife& one, const SaveLife& other) {
  std::string why = why_not_one_save(lived(one), lived(other));
  EXPECT_EQ(why.empty(), why_not_one_save(lived(other), lived(one)).empty()) << why;
  return why;
}

TEST(SaveFacts, AnAttemptTellsTheSave) {
  EXPECT_EQ(why_not_one_save(agreed("5f3a"), agreed("5f3a")), "");
  EXPECT_THAT(why_not_one_save(agreed("5f3a"), agreed("6a")),
              HasSubstr("another attempt to save it: 5f3a, and this slot 6a"));
  EXPECT_THAT(why_not_one_save(agreed("a\nb"), agreed("6a")), Not(HasSubstr("\n"))) << "it is others' text";
}

TEST(SaveFacts, AnAttemptCountsWhateverTheirLivesTell) {
  const SaveLife life{seconds(0), seconds(100), seconds(110), {}};
  const SaveLife younger{seconds(500), seconds(600), seconds(610), {}};
  ASSERT_NE(why_not(life, younger), "");
  EXPECT_EQ(why_not_one_save({"5f3a", life}, {"5f3a", younger}), "");
  ASSERT_EQ(why_not(life, life), "");
  EXPECT_NE(why_not_one_save({"5f3a", life}, {"6a", life}), "");
}

// The ranks of one save have all agreed, or none has: ckptfs.patch runs on some of the nodes only.
TEST(SaveFacts, IfOneSlotAloneHasAnAttemptTheyAreNotOneSave) {
  const SaveLife life{seconds(0), seconds(100), seconds(110), {}};
  ASSERT_EQ(why_not(life, life), "");
  for (const SaveFacts& one : {agreed("5f3a"), SaveFacts{"5f3a", life}}) {
    for (const SaveFacts& none : {lived(life), SaveFacts{}}) {
      EXPECT_THAT(why_not_one_save(none, one),
                  AllOf(HasSubstr("the ranks of this slot have agreed on an id for this save, and those of slot 0 have "
                                  "not"),
                        HasSubstr("ckptfs.patch")));
      EXPECT_THAT(why_not_one_save(one, none),
                  AllOf(HasSubstr("the ranks of slot 0 have agreed on an id for this save, and those of this slot have "
                                  "not"),
                        HasSubstr("ckptfs.patch")));
    }
  }
}

TEST(SaveFacts, WithoutALifeNothingIsKnown) {
  const SaveFacts known = lived({seconds(0), seconds(100), seconds(110), {}}), unknown{};
  EXPECT_THAT(why_not_one_save(unknown, known), AllOf(HasSubstr("slot 0 does not know"), HasSubstr("ckptfs.patch")));
  EXPECT_THAT(why_not_one_save(known, unknown), HasSubstr("this mount does not know"));
  EXPECT_NE(why_not_one_save(unknown, unknown), "");
}

// A process that began after the other slot's first file was written may be of a later run.
TEST(SaveFacts, WhoeverWroteHadBegunBeforeTheOtherSlotWrote) {
  const Milliseconds error = seconds(1), both = 2 * error;
  const SaveLife one{seconds(0), seconds(100), seconds(110), error};
  const auto began = [&](Milliseconds when) { return SaveLife{when, seconds(100), seconds(110), error}; };
  EXPECT_EQ(why_not(one, began(one.began)), "");
  EXPECT_EQ(why_not(one, began(one.first - both)), "");
  EXPECT_THAT(why_not(one, began(one.first - both + kTick)), HasSubstr("was written, within 2.0 s"))
      << "nobody can tell";
  EXPECT_THAT(why_not(one, began(one.first + both)), HasSubstr("was written, within 2.0 s"));
  EXPECT_THAT(why_not(one, began(one.first + both + kTick)), HasSubstr("it is of another run"));
  EXPECT_THAT(why_not(one, began(one.first + seconds(30))),
              HasSubstr("wrote this slot's files began 30.0 s after slot 0's first file was written"));
  EXPECT_THAT(why_not(began(one.first + seconds(30)), one),
              HasSubstr("wrote slot 0's files began 30.0 s after this slot's first file was written"));
}

TEST(SaveFacts, WithoutAnErrorAMillisecondTells) {
  const SaveLife one{seconds(0), seconds(100), seconds(110), {}};
  const auto began = [&](Milliseconds when) { return SaveLife{when, seconds(100), seconds(110), {}}; };
  EXPECT_EQ(why_not(one, began(one.first)), "");
  EXPECT_THAT(why_not(one, began(one.first + kTick)), HasSubstr("it is of another run"));
}

// One run saves a tag twice: its processes had begun, and tell nothing.
TEST(SaveFacts, OneSaveBeginsAndEndsAtAboutTheSameTime) {
  const SaveLife one{seconds(0), seconds(1000), seconds(1010), {}};
  const auto wrote = [&](Milliseconds first, Milliseconds last) { return SaveLife{seconds(0), first, last, {}}; };
  const Milliseconds most = seconds(60 + 10);  // a minute, and as long as the faster one takes
  for (const int sign : {1, -1}) {
    const Milliseconds apart = sign * most, further = sign * (most + kTick);
    EXPECT_EQ(why_not(one, wrote(one.first + apart, one.last + apart)), "");
    EXPECT_THAT(why_not(one, wrote(one.first + further, one.last + further)),
                HasSubstr("slot 0 began to write its files 70.0 s apart from this slot"));
  }
  EXPECT_EQ(why_not(one, wrote(one.first, one.last + most)), "") << "a slow disk";
  EXPECT_THAT(why_not(one, wrote(one.first, one.last + most + kTick)), HasSubstr("slot 0 ended to write its files"));
  EXPECT_EQ(why_not(one, wrote(one.first - most, one.last)), "");
  EXPECT_THAT(why_not(one, wrote(one.first - most - kTick, one.last)), HasSubstr("slot 0 began to write its files"));
  EXPECT_NE(why_not(one, wrote(one.first + seconds(900), one.last + seconds(900))), "") << "the next save";
}

// A run saves a tag again within a minute, and one slot still holds what it saved before.
TEST(SaveFacts, TwoSavesOfOneRunAreToldApartByTheirCount) {
  const auto save = [](uint64_t count) { return SaveLife{seconds(0), seconds(100), seconds(110), {}, count}; };
  EXPECT_THAT(why_not(save(1), save(2)),
              AllOf(HasSubstr("slot 0 has seen 1 saves of it by its run, and this one 2"), HasSubstr("ckptfs.patch")));
  EXPECT_THAT(why_not(save(2), save(1)), HasSubstr("slot 0 has seen 2 saves of it by its run, and this one 1"));
  EXPECT_EQ(why_not(save(2), save(2)), "");
  EXPECT_EQ(save(1), (SaveLife{seconds(0), seconds(100), seconds(110), {}})) << "what nothing is said of";
}

TEST(SaveFacts, TheFasterSlotTellsHowFarApartTheyMayBe) {
  const SaveLife fast{seconds(0), seconds(1000), seconds(1000), {}};
  const SaveLife slow{seconds(0), seconds(1000), seconds(2000), {}};
  EXPECT_NE(why_not(fast, slow), "") << "it took longer than a minute more";
  const SaveLife two_minutes{seconds(0), seconds(1000), seconds(1120), {}};
  const SaveLife three_minutes{seconds(0), seconds(1000), seconds(1180), {}};
  EXPECT_EQ(why_not(two_minutes, three_minutes), "");
}

TEST(SaveFacts, TheErrorsOfBothAreAllowedFor) {
  const SaveLife one{seconds(0), seconds(1000), seconds(1010), seconds(2)};
  const auto later = [&](Milliseconds by) { return SaveLife{seconds(0), one.first + by, one.last + by, seconds(3)}; };
  EXPECT_EQ(why_not(one, later(seconds(75))), "");
  EXPECT_NE(why_not(one, later(seconds(75) + kTick)), "");
}

TEST(SaveFacts, ALifeByAnotherClock) {
  const SaveLife life{seconds(1), seconds(2), seconds(3), kTick, 7};
  EXPECT_EQ(life.by(seconds(-10), seconds(1)),
            (SaveLife{seconds(-9), seconds(-8), seconds(-7), Milliseconds(1001), 7}));
}

TEST(SaveFacts, GoThereAndBack) {
  const SaveLife life{Milliseconds(-5), Milliseconds(0), Milliseconds(1'700'000'000'123), Milliseconds(250), 7};
  for (const SaveFacts& facts :
       {SaveFacts{}, agreed("5f3a"), agreed("a\n\xc3\xbc \"b\""), lived(life), SaveFacts{"5f3a", life}}) {
    const json object = json_of(facts);
    EXPECT_EQ(object.contains("life"), facts.life.has_value());
    const auto again = save_facts_of(json::parse(object.dump()));
    ASSERT_OK(again);
    EXPECT_EQ(again.value(), facts) << object;
  }
}

TEST(SaveFacts, WhatIsNotKnownHereIsLeftOut) {
  json object = json_of(lived({seconds(0), seconds(100), seconds(110), {}}));
  object["push"] = "step_1/0.0123456789abcdef";
  object["life"]["ended"] = "never";
  EXPECT_OK(save_facts_of(object));
}

// Whoever may write to the remote may make any part.
TEST(SaveFacts, HostileOnesAreRefused) {
  const json right = json_of({"5f3a", SaveLife{seconds(0), seconds(100), seconds(110), kTick}});
  ASSERT_OK(save_facts_of(right));
  const auto refused = [](const json& object) {
    const auto facts = save_facts_of(object);
    EXPECT_ERRNO(EBADMSG, facts) << object;
    return facts ? std::string() : facts.error().message();
  };
  EXPECT_THAT(refused(json::object()), HasSubstr("\"attempt\""));
  for (const json& attempt : {json(), json(5), json(true), json::array({"5f3a"}), json::object()}) {
    json object = right;
    object["attempt"] = attempt;
    EXPECT_THAT(refused(object), HasSubstr("\"attempt\""));
  }
  for (const json& life : {json(), json(5), json(false), json("0"), json::array({0, 100, 110, 1})}) {
    json object = right;
    object["life"] = life;
    EXPECT_THAT(refused(object), HasSubstr("\"life\""));
  }
  constexpr int64_t kTooMuch = int64_t{1} << 53;
  const std::vector<json> times{json(),          json("0"),       json(0.5),       json(1e30),
                                json(true),      json::array(),   json::object(),  json(kTooMuch),
                                json(-kTooMuch), json(INT64_MAX), json(INT64_MIN), json(uint64_t{1} << 63),
                                json(UINT64_MAX)};
  for (const char* const name : {"began", "first", "last", "error"}) {
    json without = right;
    without["life"].erase(std::string(name));
    EXPECT_THAT(refused(without), HasSubstr(name));
    for (const json& time : times) {
      json object = right;
      object["life"][name] = time;
      EXPECT_THAT(refused(object), HasSubstr(name));
    }
  }
  json without = right;
  without["life"].erase(std::string("count"));
  EXPECT_THAT(refused(without), HasSubstr("\"count\""));
  for (const json& count :
       {json(), json("1"), json(0.5), json(-1), json(INT64_MIN), json(true), json::array(), json::object()}) {
    json object = right;
    object["life"]["count"] = count;
    EXPECT_THAT(refused(object), HasSubstr("\"count\""));
  }
}

// They are compared without an overflow, and join nothing.
TEST(SaveFacts, TheUtmostTimesJoinNothing) {
  const Milliseconds most((int64_t{1} << 53) - 1);
  const SaveLife usual{seconds(0), seconds(100), seconds(110), kTick};
  for (const Milliseconds began : {-most, most}) {
    for (const Milliseconds first : {-most, most}) {
      for (const Milliseconds last : {-most, most}) {
        const SaveLife life{began, first, last, {}};
        EXPECT_EQ(save_facts_of(json_of(lived(life))).has_value(), first <= last);
        EXPECT_NE(why_not(usual, life), "");
        EXPECT_NE(why_not(life, usual), "");
      }
    }
  }
  EXPECT_NE(why_not(usual, {seconds(0), seconds(100), seconds(110), most}), "") << "within the error nobody can tell";
  const SaveLife turned{seconds(0), seconds(110), seconds(10), kTick},
      negative{seconds(0), seconds(1), seconds(2), -kTick};
  for (const SaveLife& wrong : {turned, negative}) EXPECT_ERRNO(EBADMSG, save_facts_of(json_of(lived(wrong))));
}

}  // namespace
}  // namespace ckptfs::meta::remote

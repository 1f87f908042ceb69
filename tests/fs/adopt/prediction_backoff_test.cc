#include "fs/adopt/prediction_backoff.h"

#include <gtest/gtest.h>

#include <string>

namespace ckptfs::fs {
namespace {

constexpr PredictionBackoff::Terms kTerms{.first_pause = 4, .longest_pause = 32, .alike = true};

// How many files of that name are not predicted before the next one that is.
unsigned pause_of(PredictionBackoff& trust, const std::string& name) {
  unsigned pause = 0;
  while (!trust.ask(name)) ++pause;
  return pause;
}

TEST(PredictionBackoffTest, APredictionIsMadeUntilOneIsWrong) {
  PredictionBackoff trust(kTerms);
  EXPECT_TRUE(trust.ask("optimizer.pt"));
  EXPECT_TRUE(trust.ask("optimizer.pt"));
  trust.learn("optimizer.pt", false);
  EXPECT_FALSE(trust.ask("optimizer.pt"));
}

TEST(PredictionBackoffTest, EachWrongPredictionPausesLonger) {
  PredictionBackoff trust(kTerms);
  for (unsigned pause = kTerms.first_pause; pause <= kTerms.longest_pause; pause *= 2) {
    trust.learn("optimizer.pt", false);
    EXPECT_EQ(pause_of(trust, "optimizer.pt"), pause);
  }
  trust.learn("optimizer.pt", false);
  EXPECT_EQ(pause_of(trust, "optimizer.pt"), kTerms.longest_pause);
}

TEST(PredictionBackoffTest, ARightPredictionEndsThePause) {
  PredictionBackoff trust(kTerms);
  trust.learn("optimizer.pt", false);
  trust.learn("optimizer.pt", true);
  EXPECT_TRUE(trust.ask("optimizer.pt"));
}

TEST(PredictionBackoffTest, NamesThatDifferInNumbersAreJudgedTogether) {
  PredictionBackoff trust(kTerms);
  trust.learn("layer_07-model_1.pt", false);
  EXPECT_EQ(pause_of(trust, "layer_8-model_12.pt"), kTerms.first_pause);
}

TEST(PredictionBackoffTest, NamesThatNothingIsKnownOfAreJudgedTogetherToo) {
  PredictionBackoff trust(kTerms);
  trust.learn("query.pt", false);
  EXPECT_EQ(pause_of(trust, "key.pt"), 2U);
  EXPECT_TRUE(trust.ask("value.pt"));
  trust.learn("value.pt", false);
  EXPECT_EQ(pause_of(trust, "out.pt"), 4U);
  trust.learn("query.pt", false);
  EXPECT_TRUE(trust.ask("embed.pt")) << "something was known of that one";
  trust.learn("out.pt", false);
  trust.learn("embed.pt", true);
  EXPECT_TRUE(trust.ask("norm.pt"));
}

TEST(PredictionBackoffTest, OrEachForItself) {
  PredictionBackoff trust({.first_pause = 4, .longest_pause = 32, .alike = false});
  trust.learn("layer_07.pt", false);
  EXPECT_FALSE(trust.ask("layer_07.pt"));
  EXPECT_TRUE(trust.ask("layer_08.pt"));
}

TEST(PredictionBackoffTest, WhatWasRightIsPredictedWhateverCameOfTheOthers) {
  PredictionBackoff trust(kTerms);
  trust.learn("layer_0.pt", true);
  trust.learn("layer_1.pt", false);
  EXPECT_TRUE(trust.ask("layer_0.pt"));
  EXPECT_FALSE(trust.ask("layer_2.pt"));
}

}  // namespace
}  // namespace ckptfs::fs

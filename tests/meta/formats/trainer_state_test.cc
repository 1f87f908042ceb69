#include "meta/formats/trainer_state.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

Result<std::optional<double>> metric_in(const std::string& state) {
  return metric_in_trainer_state(file_of(state).get(), state.size(), "eval_loss");
}

TEST(TrainerState, TellsWhatWasLoggedAtItsOwnStep) {
  const struct {
    std::string state;
    std::optional<double> metric;
  } states[] = {
      {R"({"global_step": 2, "log_history": [{"step": 2, "eval_loss": 0.5}]})", 0.5},
      {R"({"log_history": [{"step": 2, "eval_loss": 0.5}], "global_step": 2})", 0.5},
      {R"({"global_step": 2, "log_history": [{"eval_loss": 1, "step": 1}, {"step": 2.0, "eval_loss": -3}]})", -3},
      {R"({"global_step": 2, "log_history": [{"step": 2, "eval_loss": 1}, {"step": 2, "loss": 4}]})", 1},
      {R"({"global_step": 2, "log_history": [{"step": 2, "eval_loss": 1}, {"step": 2, "eval_loss": 4}]})", 4},
      {R"({"global_step": 2, "log_history": [{"step": 2, "eval_loss": 1}, {"step": 2, "eval_loss": NaN}]})", 1},
      {R"({"global_step": 2, "log_history": [{"step": 2, "x": {"eval_loss": 7}, "y": [1, [2]], "eval_loss": 1}]})", 1},
      {R"({"global_step": 2, "log_history": [{"step": 1, "eval_loss": 0.5}]})", std::nullopt},
      {R"({"global_step": 2, "log_history": [{"step": 2, "eval_loss": "0.5"}]})", std::nullopt},
      {R"({"global_step": 2, "log_history": [[{"step": 2, "eval_loss": 0.5}]], "x": [{"step": 2, "eval_loss": 1}]})",
       std::nullopt},
      {R"({"global_step": 2, "eval_loss": 3})", std::nullopt},
      {"{}", std::nullopt},
  };
  for (const auto& [state, metric] : states) {
    const auto found = metric_in(state);
    ASSERT_TRUE(found) << state << ": " << found.error().message();
    EXPECT_EQ(found.value(), metric) << state;
    EXPECT_EQ(check_trainer_state(file_of(state).get(), state.size()).has_value(), state != "{}");
  }
}

TEST(TrainerState, NamesTheBestModel) {
  const auto best_in = [](const std::string& state) {
    return best_model_in_trainer_state(file_of(state).get(), state.size()).value();
  };
  EXPECT_EQ(best_in(R"({"best_model_checkpoint": "out/run/checkpoint-500", "global_step": 9})"), "checkpoint-500");
  EXPECT_EQ(best_in(R"({"best_model_checkpoint": "checkpoint-500/"})"), "checkpoint-500");
  EXPECT_EQ(best_in(R"({"best_model_checkpoint": null, "x": "y", "z": {"best_model_checkpoint": "no"}})"), "");
  EXPECT_EQ(best_in(R"({"best_model_checkpoint": {"a": "no"}, "log_history": ["no"]})"), "");
}

TEST(TrainerState, WhatIsNone) {
  for (const std::string state : {"", "{", "[]", "{\"global_step\": 1"}) {
    const auto found = metric_in(state);
    ASSERT_FALSE(found) << state;
    EXPECT_EQ(found.error().errno_value(), EBADMSG);
  }
}

// Each value takes a few bytes in the file; a tree of them would take gigabytes.
TEST(TrainerState, HostileOnesAreErrorsOrCostNothing) {
  const std::string head = R"({"global_step": 1, "log_history": [)", tail = "{}]}";
  std::string many = head;
  while (many.size() < (size_t{1} << 20)) many += "{},";
  EXPECT_TRUE(metric_in(many + tail));
  for (const std::string& state :
       {head + std::string(200000, '[') + std::string(200000, ']') + "]}",
        head + "\"" + std::string(size_t{2} << 20, 'x') + "\"" + "]}", std::string((size_t{64} << 20) + 1, ' ')}) {
    EXPECT_EQ(metric_in(state).error().errno_value(), EFBIG);
    EXPECT_EQ(check_trainer_state(file_of(state).get(), state.size()).error().errno_value(), EFBIG);
  }
}

}  // namespace
}  // namespace ckptfs::meta::formats

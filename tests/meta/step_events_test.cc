#include "meta/tree/step_events.h"

#include <linux/fs.h>

#include "meta/steps/partial.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using What = StepEvent::What;

class StepEventsTest : public ScratchStore {
 protected:
  // Of numbers behind `after`: "removed checkpoint-1 by hand".
  std::vector<std::string> told(uint64_t after = 0) {
    std::vector<std::string> lines;
    const auto found = store_->index().events_after(after, 100).value();
    for (const auto& [number, text] : found) {
      const StepEvent event = decode_event(text).value();
      EXPECT_EQ(number, after + lines.size() + 1);
      lines.push_back(std::string(meta::name_of(event.what)) + " " + event.tag + " " + event.detail);
    }
    return lines;
  }
};

TEST_F(StepEventsTest, AreDecodedAsTheyWere) {
  const StepEvent event{What::renamed, WallTime(std::chrono::seconds(5)), 7, 8, 1000, "a \n b", "/c/d e"};
  const StepEvent same = decode_event(encode_event(event)).value();
  EXPECT_EQ(std::tie(same.what, same.time, same.step, same.series, same.owner, same.tag, same.detail),
            std::tie(event.what, event.time, event.step, event.series, event.owner, event.tag, event.detail));
  for (const char* const damaged : {"", "removed", "removed 1 2 3 4", "eaten 1 2 3 4"})
    EXPECT_EQ(decode_event(damaged).error().errno_value(), EIO);
}

TEST_F(StepEventsTest, AreThoseOfStepsOfSeries) {
  make_folder("/steps/checkpoint-1");
  make_folder("/steps/notes");
  make_folder("/steps/partial-5f3a-checkpoint-2");
  make_folder("/runs");
  make_folder("/runs/checkpoint-3");
  make_file("/steps/checkpoint-4");
  for (const char* const path : {"/steps/notes", "/steps/partial-5f3a-checkpoint-2", "/runs/checkpoint-3"}) {
    const auto folder = tree().inode(at(path)).value();
    ASSERT_TRUE(tree().remove_directory(folder.parent, name_of(path)));
  }
  remove("/steps/checkpoint-4");
  EXPECT_EQ(told(), std::vector<std::string>());
  const InodeNumber steps = at("/steps"), step = at("/steps/checkpoint-1");
  ASSERT_TRUE(tree().rename(steps, "checkpoint-1", steps, "checkpoint-5", 0));
  ASSERT_TRUE(set_aside(*store_, steps, step, "checkpoint-5"));
  ASSERT_TRUE(tree().take_out(steps, "incomplete-checkpoint-5", step, "keep_last"));
  const std::vector<std::string> all{"renamed checkpoint-1 checkpoint-5",
                                     "set_aside checkpoint-5 incomplete-checkpoint-5",
                                     "removed incomplete-checkpoint-5 keep_last"};
  EXPECT_EQ(told(), all);
  reopen();
  EXPECT_EQ(told(1), std::vector<std::string>(all.begin() + 1, all.end()));
}

TEST_F(StepEventsTest, WhatIsNotDoneHasNoNumber) {
  const InodeNumber steps = at("/steps");
  make_folder("/steps/checkpoint-1");
  {
    Tree::Change change = tree().begin();
    change.note_event(What::thinned, at("/steps/checkpoint-1"), tree().inode(at("/steps/checkpoint-1")).value());
  }  // never committed
  ASSERT_TRUE(tree().remove_directory(steps, "checkpoint-1"));
  EXPECT_EQ(told(), std::vector<std::string>{"removed checkpoint-1 "});
  EXPECT_EQ(store_->index().last_event().value(), 1U);
}

TEST_F(StepEventsTest, TheOldestMakesRoom) {
  Batch batch(store_->index());
  for (const uint64_t number : {uint64_t{1}, uint64_t{2}, kKeptEvents + 1}) batch.put_event(number, "event");
  ASSERT_TRUE(store_->index().commit(std::move(batch)));
  const auto found = store_->index().events_after(0, 100).value();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].first, 2U);
  EXPECT_EQ(store_->index().last_event().value(), kKeptEvents + 1);
}

}  // namespace
}  // namespace ckptfs::meta

#include "meta/remote/push.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/mutex.h"
#include "meta/remote/commit.h"
#include "meta/remote/decide.h"
#include "meta/remote/part.h"
#include "meta/remote/slot_parts.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Fate = io::testing::MemoryStore::Fate;
using State = TagStatus::State;
using std::chrono::seconds;

class PushTest : public ::testing::Test {
 protected:
  PushTest() {
    settings_.folder = scratch_.path();
    settings_.piece_bytes = 2 * kChunkBytes;
    settings_.clock = [this] { return store_.now; };
    store_.fate = [this](const std::string& operation, const std::string& key) {  // files are sent at the same time
      const io::MutexLock lock(mutex_);
      if (operation != "get" && operation != "list") done_.push_back(operation + " " + key);
      return fate_(operation, key);
    };
  }
  Slot slot(uint32_t number = 0, uint32_t slots = 1, const std::string& host = "node0") const {
    return {number, slots, host, "mount of " + host};
  }
  PushJournal journal(uint32_t of_slot = 0) {
    return PushJournal::open(scratch_.path() + "/journal" + std::to_string(of_slot), "remote").value();
  }
  Result<PushedPart> push(const StepImage& image, const Slot& as) {
    PushJournal its_journal = journal(as.slot);
    KnownParts known;
    done_.clear();
    store_.now += seconds(1);  // so that lists tell which part is the newer one
    return push_part(store_, as, image, its_journal, known, settings_);
  }
  Result<TagStatus> commit(const PushedPart& part, const Slot& as) {
    KnownParts known;
    DecisionMemory memory;
    return decide(store_, as, part, known, memory, settings_);
  }
  void push_and_commit(const StepImage& image) {
    const auto pushed = push(image, slot());
    ASSERT_OK(pushed);
    const auto status = commit(pushed.value(), slot());
    ASSERT_OK(status);
    ASSERT_EQ(status.value().state, State::committed) << status.value().reason;
  }
  void bury(const DecisionName& decision) {
    ASSERT_OK(store_.put(gone_key(decision), io::content_of("{}"), io::PutMode::make, {}));
  }
  std::vector<std::string> parts_of_tag(const std::string& tag) const { return store_.keys(kParts + tag + "/"); }
  // "put step_1.<id>/PATH" and the like, of the push that was made last.
  std::vector<std::string> done_to(const PushName& push, const std::string& path) {
    std::vector<std::string> found;
    for (const std::string& one : done_) {
      const size_t at = one.find(" " + push.folder() + path);
      if (at != std::string::npos)
        found.push_back(one.substr(0, at) + one.substr(at + 1 + push.folder().size() + path.size()));
    }
    return found;
  }
  static BuiltPart five_chunks() {
    BuiltPart part;
    part.file("a.bin", bytes_for(3 * kChunkBytes + 5, 1)).file("b.bin", bytes_for(100, 2)).file("empty", "");
    part.link("link", "a.bin");
    return part;
  }

  io::testing::ScratchFolder scratch_;
  io::testing::MemoryStore store_;
  io::Mutex mutex_;
  std::function<Fate(const std::string&, const std::string&)> fate_ = [](auto&, auto&) { return Fate::done; };
  const std::function<Fate(const std::string&, const std::string&)> no_part_ = [](const std::string& operation,
                                                                                  const std::string& key) {
    return operation == "put" && key.starts_with(kParts) ? Fate::refused : Fate::done;
  };
  std::vector<std::string> done_;  // requests that change something, in their order
  PushSettings settings_;
};

TEST_F(PushTest, SendsFilesThenThePart) {
  BuiltPart part = five_chunks();
  part.file("config.json", "{}").file(".metadata", "x").file("z", "x");
  part.save = {"5f3a", SaveLife{seconds(1), seconds(2), seconds(3), {}}};
  const BuiltImage image("step_1", part, {7, 8});
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
  EXPECT_EQ(pushed.value().waits, "");
  EXPECT_EQ(pushed.value().sent, 3 * kChunkBytes + 109);
  const PushName& name = pushed.value().name.push;
  EXPECT_EQ(done_.front(), "put " + push_key(name)) << "first it says that it has begun";
  EXPECT_THAT(done_to(name, "a.bin"), ::testing::UnorderedElementsAre("piece#1", "piece#2", "complete"));
  EXPECT_THAT(done_to(name, "b.bin"), ElementsAre("put"));
  const auto at = [&](const std::string& path) {
    return std::ranges::find(done_, "put " + name.folder() + path) - done_.begin();
  };
  for (const char* const last : {"config.json", ".metadata"}) {
    for (const char* const other : {"b.bin", "empty", "z"}) EXPECT_LT(at(other), at(last)) << other << " " << last;
  }
  EXPECT_EQ(done_.back(), "put " + part_key(name));
  const auto fetched = fetch_part(store_, name, pushed.value().name.digest, scratch_.path(), {});
  ASSERT_OK(fetched);
  EXPECT_EQ(pushed.value().decision, (DecisionName{{7, 8}, "step_1", name.id}));
  EXPECT_EQ(fetched.value().header().decision, pushed.value().decision);
  EXPECT_EQ(fetched.value().header().save, (SaveFacts{"5f3a", {}})) << "of one slot nobody has to know its life";
  EXPECT_EQ(fetched.value().header().saved, saved_of(image).value());
  EXPECT_EQ(fetched.value().entries().size(), 8U);
  EXPECT_EQ(fetched.value().name(), pushed.value().name);
  for (const auto& [path, entry] : part.entries) {
    if (entry.first.kind != Entry::Kind::file) continue;
    EXPECT_EQ(io::get_text(store_, name.folder() + path, 16 << 20, {}).value(), entry.second) << "as it is: " << path;
  }
}

TEST_F(PushTest, OfSeveralSlotsEachHasItsPlace) {
  const BuiltImage image("step_1", BuiltPart().file("a", "x"));
  const auto first = push(image, slot(0, 5));
  ASSERT_OK(first);
  EXPECT_THAT(store_.keys(first.value().name.push.folder()),
              ElementsAre(first.value().name.push.folder() + "slot-0/a"));
  ASSERT_OK(push(image, slot(3, 5)));  // which waits
  const std::string folder = journal(3).push()->folder();
  EXPECT_THAT(store_.keys(folder), ElementsAre(folder + "slot-3/a"));
}

TEST_F(PushTest, SendsNothingTwice) {
  const BuiltImage image("step_1", five_chunks());
  const auto first = push(image, slot());
  ASSERT_OK(first);
  const auto second = push(image, slot());
  ASSERT_OK(second);
  EXPECT_EQ(second.value().name, first.value().name);
  EXPECT_EQ(second.value().decision, first.value().decision);
  EXPECT_EQ(second.value().sent + second.value().copied, 0U);
  EXPECT_THAT(done_, IsEmpty());
  const auto elsewhere = push(image, slot(0, 1, "node1"));
  ASSERT_OK(elsewhere);
  EXPECT_EQ(elsewhere.value().name, first.value().name) << "the mount has another host name by now";
}

TEST_F(PushTest, TheStoreCopiesWhatTheNewestCommitHas) {
  push_and_commit(BuiltImage("step_1", five_chunks()));
  BuiltPart changed = five_chunks();
  changed.file("b.bin", bytes_for(100, 3));
  const BuiltImage image("step_2", changed);
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
  EXPECT_EQ(pushed.value().sent, 100U);
  EXPECT_EQ(pushed.value().copied, 3 * kChunkBytes + 5);
  EXPECT_THAT(done_to(pushed.value().name.push, "a.bin"), ElementsAre("copy"));
  EXPECT_THAT(done_to(pushed.value().name.push, "b.bin"), ElementsAre("put"));
  for (const std::string& key : store_.keys("step_1.")) ASSERT_OK(store_.remove(key, {}));
  EXPECT_EQ(commit(pushed.value(), slot()).value().state, State::committed) << "it needs nothing of step_1";
  EXPECT_EQ(io::get_text(store_, pushed.value().name.push.folder() + "a.bin", 16 << 20, {}).value(),
            changed.entries.at("a.bin").second);
}

TEST_F(PushTest, WhatCannotBeCopiedIsSent) {
  push_and_commit(BuiltImage("step_1", five_chunks()));
  for (const Fate fate : {Fate::missing, Fate::forbidden, Fate::refused}) {
    fate_ = [fate](const std::string& operation, auto&) { return operation == "copy" ? fate : Fate::done; };
    const BuiltImage other("other_" + std::to_string(static_cast<int>(fate)), five_chunks());
    const auto pushed = push(other, slot());
    ASSERT_OK(pushed);
    EXPECT_EQ(pushed.value().sent, 3 * kChunkBytes + 105);
    EXPECT_EQ(pushed.value().copied, 0U);
  }
}

TEST_F(PushTest, GoesOnFromItsJournal) {
  const BuiltImage image("step_1", five_chunks());
  settings_.parallel = settings_.parallel_small = 1;
  fate_ = [](auto&, const std::string& key) { return key.ends_with("#2") ? Fate::refused : Fate::done; };
  EXPECT_ERRNO(EAGAIN, push(image, slot()));
  const PushName first = *journal().push();
  fate_ = [](auto&, const std::string& key) { return key.ends_with("/empty") ? Fate::refused : Fate::done; };
  EXPECT_ERRNO(EAGAIN, push(image, slot()));
  EXPECT_THAT(done_to(first, "a.bin"), ElementsAre("piece#2", "complete")) << "the first piece was there";
  fate_ = [](auto&, auto&) { return Fate::done; };
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
  EXPECT_EQ(pushed.value().name.push, first);
  EXPECT_THAT(done_to(first, "a.bin"), IsEmpty());
  EXPECT_EQ(pushed.value().copied + pushed.value().sent, 3 * kChunkBytes + 105);
  EXPECT_EQ(commit(pushed.value(), slot()).value().state, State::committed);
  EXPECT_FALSE(journal().push());
}

// A store may be restored from a copy.
TEST_F(PushTest, WhatIsNoLongerThereIsSentAgain) {
  const BuiltImage image("step_1", five_chunks());
  settings_.parallel = settings_.parallel_small = 1;
  fate_ = no_part_;
  EXPECT_ERRNO(EAGAIN, push(image, slot()));
  const PushName name = *journal().push();
  ASSERT_OK(store_.remove(name.folder() + "a.bin", {}));
  ASSERT_OK(store_.put(name.folder() + "b.bin", io::content_of("x"), io::PutMode::replace, {}));
  fate_ = [](auto&, auto&) { return Fate::done; };
  EXPECT_ERRNO(EAGAIN, push(image, slot())) << "its upload is gone as well; the next call begins another one";
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
  EXPECT_EQ(pushed.value().sent, 3 * kChunkBytes + 105);
  EXPECT_EQ(pushed.value().copied, 0U);
  EXPECT_EQ(io::get_text(store_, name.folder() + "b.bin", 1000, {}).value(), bytes_for(100, 2));
}

TEST_F(PushTest, WhatVanishesWhileItIsPushedIsSentAgain) {
  settings_.parallel = settings_.parallel_small = 1;
  int times = 1;
  fate_ = [&](const std::string& operation, const std::string& key) {
    if (operation == "list" && key.starts_with("step_") && times-- > 0) {
      auto objects = store_.copy();
      std::erase_if(objects, [](const auto& one) { return one.first.ends_with("/b.bin"); });
      store_.restore(std::move(objects));
    }
    return Fate::done;
  };
  const BuiltImage image("step_1", five_chunks());
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
  EXPECT_THAT(done_to(pushed.value().name.push, "b.bin"), ElementsAre("put", "put"));
  times = 1000;
  EXPECT_ERRNO(EAGAIN, push(BuiltImage("step_2", five_chunks()), slot())) << "not committed without it";
  EXPECT_THAT(store_.keys(std::string(kParts) + "step_2/"), IsEmpty());
}

TEST_F(PushTest, ANameThatIsTooLongIsRefusedBeforeAnythingIsSent) {
  std::string path;
  for (int depth = 0; depth < 10; ++depth) path += std::string(99, 'a') + "/";
  const BuiltImage image("step_1", BuiltPart().file("large", bytes_for(3 * kChunkBytes, 1)).file(path + "b", "x"));
  EXPECT_ERRNO(EINVAL, push(image, slot()));
  EXPECT_THAT(store_.keys(), IsEmpty());
}

// What is sent under a push's name never changes. Of a step that changed, the store copies what did not.
TEST_F(PushTest, AStepThatChangedIsAnotherPush) {
  const BuiltImage image("step_1", five_chunks());
  fate_ = no_part_;
  EXPECT_ERRNO(EAGAIN, push(image, slot()));
  const PushName first = *journal().push();
  fate_ = [](auto&, auto&) { return Fate::done; };
  BuiltPart changed = five_chunks();
  changed.file("b.bin", bytes_for(100, 4)).file("eval_results.json", "{}");
  const auto pushed = push(BuiltImage("step_1", changed), slot());
  ASSERT_OK(pushed);
  EXPECT_NE(pushed.value().name.push, first);
  EXPECT_EQ(pushed.value().sent, 102U);
  EXPECT_EQ(pushed.value().copied, 3 * kChunkBytes + 5);
  EXPECT_EQ(io::get_text(store_, first.folder() + "b.bin", 1000, {}).value(), bytes_for(100, 2));
}

TEST_F(PushTest, AnEndedPushDoesNotGoOn) {
  const BuiltImage image("step_1", five_chunks());
  fate_ = [](auto&, const std::string& key) { return key.ends_with("/empty") ? Fate::refused : Fate::done; };
  settings_.parallel = settings_.parallel_small = 1;
  EXPECT_ERRNO(EAGAIN, push(image, slot()));
  fate_ = [](auto&, auto&) { return Fate::done; };
  const PushName ended = *journal().push();
  const std::string mark = "ended";
  ASSERT_OK(store_.put(part_key(ended), io::content_of(mark), io::PutMode::make, {}));
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
  EXPECT_NE(pushed.value().name.push, ended);
  EXPECT_EQ(commit(pushed.value(), slot()).value().state, State::committed);
}

// That of a mount which was off for a week.
TEST_F(PushTest, AnEndedUploadIsBegunAnew) {
  const BuiltImage image("step_1", five_chunks());
  settings_.parallel = settings_.parallel_small = 1;
  fate_ = [](auto&, const std::string& key) { return key.ends_with("#2") ? Fate::refused : Fate::done; };
  EXPECT_ERRNO(EAGAIN, push(image, slot()));
  fate_ = [](auto&, auto&) { return Fate::done; };
  EXPECT_EQ(store_.end_uploads(std::chrono::seconds(0), {}).value(), 1U);
  EXPECT_ERRNO(EAGAIN, push(image, slot()));
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
  EXPECT_EQ(pushed.value().sent, 3 * kChunkBytes + 105);
  EXPECT_EQ(store_.uploads(), 0U);
}

TEST_F(PushTest, ALostReplyIsNoError) {
  unsigned seed = 0;
  for (const std::string lost : {"/b.bin", "#1", "/a.bin", "part"}) {
    BuiltPart part;  // that no commit before has
    part.file("a.bin", bytes_for(3 * kChunkBytes, ++seed)).file("b.bin", bytes_for(100, seed));
    const BuiltImage image("step " + lost.substr(1), part);
    fate_ = [&lost](const std::string& operation, const std::string& key) {
      const bool is_part = lost == "part" && operation == "put" && key.starts_with(kParts);
      return is_part || key.ends_with(lost) ? Fate::reply_lost : Fate::done;
    };
    EXPECT_ERRNO(ECONNRESET, push(image, slot())) << lost;
    fate_ = [](auto&, auto&) { return Fate::done; };
    const auto pushed = push(image, slot());
    ASSERT_OK(pushed);
    EXPECT_EQ(done_.empty(), lost == "part") << "a part that is there is found";
    EXPECT_EQ(commit(pushed.value(), slot()).value().state, State::committed) << lost;
  }
}

TEST_F(PushTest, ChangedAndRottenFilesAreNotPushed) {
  BuiltImage image("step_1", five_chunks());
  image.rotten = true;
  const auto rotten = push(image, slot());
  EXPECT_ERRNO(EBADMSG, rotten);
  EXPECT_THAT(rotten.error().message(), HasSubstr("step_1/a.bin"));
  image.current = false;
  EXPECT_ERRNO(ESTALE, push(image, slot()));
  image.rotten = false;
  EXPECT_ERRNO(ESTALE, push(image, slot()));
}

// Evaluation results, say. What a trainer saved has not changed, so that the step is as it is there.
TEST_F(PushTest, ANoteThatIsAddedIsNoPush) {
  const Order order{1, 5};
  push_and_commit(BuiltImage("step_1", five_chunks(), order));
  const auto committed = push(BuiltImage("step_1", five_chunks(), order), slot()).value();
  for (const char* const note : {"eval_results.json", "README.md"}) {
    const BuiltImage noted("step_1", five_chunks().file(note, "x"), order);
    const auto again = push(noted, slot());
    ASSERT_OK(again);
    EXPECT_EQ(again.value().name, committed.name);
    EXPECT_THAT(done_, IsEmpty()) << note;
    EXPECT_EQ(commit(again.value(), slot()).value().state, State::committed);
  }
  EXPECT_THAT(store_.keys(kSteps), SizeIs(1));
  const auto changed = push(BuiltImage("step_1", five_chunks().file("late.bin", "x"), order), slot());
  ASSERT_OK(changed);
  EXPECT_NE(changed.value().name, committed.name) << "it is none";
}

// `ckptfs push --again`: what other slots have changed since is committed with it.
TEST_F(PushTest, WhatIsCommittedAsItIsIsPushedAgainOnRequest) {
  const BuiltImage image("step_1", five_chunks());
  settings_.again = true;
  const auto first = push(image, slot());
  ASSERT_OK(first);
  EXPECT_EQ(push(image, slot()).value().name, first.value().name) << "it is not committed yet";
  ASSERT_EQ(commit(first.value(), slot()).value().state, State::committed);
  const auto again = push(image, slot());
  ASSERT_OK(again);
  EXPECT_NE(again.value().name.push, first.value().name.push);
  EXPECT_EQ(again.value().decision.order, first.value().decision.order) << "it is the same save";
  EXPECT_EQ(again.value().sent, 0U);
  EXPECT_EQ(commit(again.value(), slot()).value().commit->name(), "step_1~2");
  settings_.again = false;
  EXPECT_EQ(push(image, slot()).value().name, again.value().name);
}

TEST_F(PushTest, TwoSavesMayHoldTheSameBytes) {
  push_and_commit(BuiltImage("step_1", five_chunks(), {1, 10}));
  push_and_commit(BuiltImage("step_2", five_chunks(), {1, 20}));
  const auto again = push(BuiltImage("step_1", five_chunks(), {1, 30}), slot());
  ASSERT_OK(again);
  EXPECT_EQ(again.value().sent, 0U);
  EXPECT_EQ(again.value().copied, 3 * kChunkBytes + 105);
  const auto status = commit(again.value(), slot());
  ASSERT_OK(status);
  ASSERT_EQ(status.value().state, State::committed);
  EXPECT_EQ(status.value().commit->name(), "step_1~2");
  EXPECT_EQ(newest(list_steps(store_, {}).value())->name(), "step_1~2");
}

std::string newest_name(io::ObjectStore& store) { return newest(list_steps(store, {}).value())->name(); }

TEST_F(PushTest, TheNewestStepIsTheOneThatWasSavedLast) {
  const auto commits = [&](const std::string& tag, unsigned seed, Order order) {
    push_and_commit(BuiltImage(tag, BuiltPart().file("weights.bin", bytes_for(100, seed)), order));
    return newest_name(store_);
  };
  EXPECT_EQ(commits("step_10", 10, {1, 10}), "step_10");
  EXPECT_EQ(commits("step_20", 20, {1, 20}), "step_20");
  EXPECT_EQ(commits("step_30", 30, {1, 30}), "step_30");
  EXPECT_EQ(commits("step_10", 11, {1, 10}), "step_30") << "it was changed, and not saved again";
  EXPECT_EQ(commits("step_25", 25, {1, 25}), "step_30") << "its push was late";
  EXPECT_EQ(commits("step_20", 21, {1, 40}), "step_20~2") << "saved again";
  EXPECT_EQ(commits("step_20", 22, {1, 40}), "step_20~3") << "the newest itself was changed";
  EXPECT_EQ(commits("step_5", 5, {1, 50}), "step_5") << "another run";
  EXPECT_EQ(commits("step_1", 1, {2, 1}), "step_1") << "another mount has slot 0 since";
  EXPECT_EQ(commits("step_99", 99, {1, 99}), "step_1");
}

TEST_F(PushTest, WhatIsPushedAfterARemovalKeepsItsPlace) {
  push_and_commit(BuiltImage("step_10", BuiltPart().file("weights.bin", "x"), {1, 10}));
  push_and_commit(BuiltImage("step_20", BuiltPart().file("weights.bin", "y"), {1, 20}));
  bury(find_step(store_, "step_10", {}).value().decision);
  push_and_commit(BuiltImage("step_10", BuiltPart().file("weights.bin", "x").file("README.md", ""), {1, 10}));
  EXPECT_OK(find_step(store_, "step_10~2", {})) << "what is removed cannot stay";
  EXPECT_EQ(newest_name(store_), "step_20");
}

// With several slots.
class SlotsTest : public PushTest {
 protected:
  // A file of this slot alone.
  static BuiltPart share(uint32_t number, unsigned seed, const std::string& attempt = "first") {
    BuiltPart part;
    part.file("rank" + std::to_string(number) + ".bin", bytes_for(50, seed));
    part.save.attempt = attempt;
    return part;
  }
  Slot of(uint32_t number, uint32_t slots = 2) const { return slot(number, slots, "node" + std::to_string(number)); }
  // What goes with this decision, by its commit.
  std::vector<PushName> pushes_in(const DecisionName& decision) {
    const auto fetched = fetch_commit(store_, decision, {});
    EXPECT_OK(fetched);
    std::vector<PushName> found;
    if (!fetched) return found;
    for (const PartName& part : fetched.value().parts) found.push_back(part.push);
    return found;
  }
  void make_void(const DecisionName& decision) {
    const std::string text = void_text();
    ASSERT_OK(store_.put(step_key(decision), io::content_of(text), io::PutMode::make, {}));
  }
};

TEST_F(SlotsTest, EachSlotPushesAndAnyoneCommits) {
  const BuiltImage one("step_1", share(0, 1), {1, 5}), other("step_1", share(1, 1), {9, 9});
  const auto part0 = push(one, of(0)).value();
  auto status = commit(part0, of(0)).value();
  EXPECT_EQ(status.state, State::waits);
  EXPECT_EQ(status.missing, std::vector<uint32_t>{1});
  EXPECT_EQ(status.reason, "slot 1 did not push this save yet");
  const auto part1 = push(other, of(1)).value();
  EXPECT_EQ(part1.waits, "");
  EXPECT_EQ(part1.name.push.slot, 1U);
  EXPECT_EQ(part1.decision, part0.decision) << "the push of slot 0 names the save, and has its order";
  EXPECT_EQ(part0.decision, (DecisionName{{1, 5}, "step_1", part0.name.push.id}));
  status = commit(part0, of(0)).value();
  EXPECT_EQ(status.state, State::committed) << "nobody has to wait for slot 1";
  EXPECT_EQ(status.commit->name(), "step_1");
  EXPECT_EQ(status.commit->decision, part0.decision);
  EXPECT_EQ(commit(part1, of(1)).value().state, State::committed);
  EXPECT_THAT(pushes_in(part0.decision), ElementsAre(part0.name.push, part1.name.push));
  EXPECT_EQ(push(other, of(1)).value().name, part1.name) << "it stays";
}

TEST_F(SlotsTest, ACommitNeedsAllSlots) {
  const std::vector<std::string> reasons{"slots 1, 2 did not push this save yet", "slot 2 did not push this save yet",
                                         ""};
  std::vector<PushedPart> parts;
  for (uint32_t number = 0; number < 3; ++number) {
    const BuiltImage image("step_1", share(number, 1));
    parts.push_back(push(image, of(number, 3)).value());
    ASSERT_EQ(parts.back().waits, "");
    const auto status = commit(parts.back(), of(number, 3)).value();
    EXPECT_EQ(status.state, number < 2 ? State::waits : State::committed);
    EXPECT_EQ(status.reason, reasons.at(number));
    EXPECT_THAT(status.missing, SizeIs(2 - number));
    EXPECT_THAT(store_.keys(kSteps), SizeIs(number < 2 ? 0 : 1));
  }
  for (uint32_t number = 0; number < 3; ++number) {
    EXPECT_EQ(commit(parts[number], of(number, 3)).value().state, State::committed);
  }
}

TEST_F(SlotsTest, ASlotWaitsForAPartOfSlotZeroOfItsSave) {
  const BuiltImage first("step_1", share(0, 1, "first"), {1, 1}), second("step_1", share(0, 2, "second"), {1, 2});
  const BuiltImage other("step_1", share(1, 1, "second"));
  auto waiting = push(other, of(1)).value();
  EXPECT_EQ(waiting.waits, "slot 0 did not push it yet");
  EXPECT_EQ(waiting.sent, 50U) << "its files are sent already";
  const PushName name = *journal(1).push();
  EXPECT_THAT(store_.keys(name.folder()), ElementsAre(name.folder() + "slot-1/rank1.bin"));
  const auto part0 = push(first, of(0)).value();
  waiting = push(other, of(1)).value();
  EXPECT_THAT(waiting.waits, HasSubstr("another attempt to save it: first, and this slot second"));
  EXPECT_EQ(waiting.name, PartName{});
  EXPECT_EQ(waiting.sent, 0U);
  EXPECT_THAT(done_, IsEmpty());
  EXPECT_THAT(parts_of_tag("step_1"), ElementsAre(part_key(part0.name.push)));
  const auto again = push(second, of(0)).value();
  EXPECT_NE(again.decision, part0.decision);
  const auto joined = push(other, of(1)).value();
  EXPECT_EQ(joined.waits, "");
  EXPECT_EQ(joined.decision, again.decision);
  EXPECT_EQ(joined.name.push, name);
  EXPECT_THAT(done_, ElementsAre("put " + part_key(name)));
  EXPECT_EQ(commit(joined, of(1)).value().state, State::committed);
  EXPECT_THAT(pushes_in(again.decision), ElementsAre(again.name.push, name));
  EXPECT_EQ(commit(part0, of(0)).value().state, State::waits) << "nobody has pushed the first attempt but slot 0";
}

TEST_F(SlotsTest, AfterAVoidItJoinsTheNextPushOfSlotZero) {
  const BuiltImage one("step_1", share(0, 1), {1, 5}), other("step_1", share(1, 1));
  const auto part0 = push(one, of(0)).value(), part1 = push(other, of(1)).value();
  make_void(part0.decision);
  EXPECT_EQ(commit(part0, of(0)).value().state, State::ended);
  EXPECT_EQ(commit(part1, of(1)).value().state, State::ended);
  EXPECT_EQ(push(other, of(1)).value().waits, "slot 0 did not push it yet");
  const auto again = push(one, of(0)).value();
  EXPECT_NE(again.name.push, part0.name.push);
  EXPECT_NE(again.decision, part0.decision);
  EXPECT_EQ(again.decision.order, part0.decision.order) << "it is the same save";
  const auto joined = push(other, of(1)).value();
  EXPECT_EQ(joined.waits, "");
  EXPECT_NE(joined.name.push, part1.name.push);
  EXPECT_EQ(joined.decision, again.decision);
  const auto status = commit(joined, of(1)).value();
  EXPECT_EQ(status.state, State::committed);
  EXPECT_EQ(status.commit->name(), "step_1");
  EXPECT_THAT(pushes_in(again.decision), ElementsAre(again.name.push, joined.name.push));
}

TEST_F(SlotsTest, ANoteThatIsAddedIsNoPushOfAnySlot) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1));
  const BuiltImage one_noted("step_1", share(0, 1).file("eval_results.json", "{}"));
  const BuiltImage other_noted("step_1", share(1, 1).file("README.md", "x"));
  const auto part0 = push(one, of(0)).value();
  EXPECT_EQ(push(one_noted, of(0)).value().name, part0.name) << "while nothing is decided";
  const auto part1 = push(other, of(1)).value();
  EXPECT_EQ(push(other_noted, of(1)).value().name, part1.name);
  EXPECT_EQ(commit(part1, of(1)).value().state, State::committed);
  EXPECT_EQ(push(one_noted, of(0)).value().name, part0.name) << "and once it is";
  EXPECT_EQ(push(other_noted, of(1)).value().name, part1.name);
  EXPECT_THAT(done_, IsEmpty());
}

TEST_F(SlotsTest, OfASlotTheNewestPartCounts) {
  const BuiltImage one("step_1", share(0, 1)), before("step_1", share(1, 1)), after("step_1", share(1, 2));
  const auto part0 = push(one, of(0)).value(), part1 = push(before, of(1)).value();
  const auto newer = push(after, of(1)).value();
  EXPECT_NE(newer.name.push, part1.name.push);
  EXPECT_EQ(newer.decision, part1.decision);
  EXPECT_EQ(commit(part0, of(0)).value().state, State::committed);
  EXPECT_THAT(pushes_in(part0.decision), ElementsAre(part0.name.push, newer.name.push));
  const auto status = commit(part1, of(1)).value();
  EXPECT_EQ(status.state, State::push_again);
  EXPECT_EQ(status.reason, "it was committed without what has changed here since");
  EXPECT_EQ(commit(newer, of(1)).value().state, State::committed);
}

TEST_F(SlotsTest, IfSlotZeroPushesASaveAgainTheOthersJoinThat) {
  const BuiltImage one("step_1", share(0, 1), {1, 5}), changed("step_1", share(0, 2), {1, 5});
  const BuiltImage other("step_1", share(1, 1));
  const auto part0 = push(one, of(0)).value(), part1 = push(other, of(1)).value();
  const auto again = push(changed, of(0)).value();
  EXPECT_NE(again.decision, part0.decision);
  EXPECT_EQ(commit(again, of(0)).value().missing, std::vector<uint32_t>{1});
  const auto status = commit(part1, of(1)).value();
  EXPECT_EQ(status.state, State::push_again);
  EXPECT_EQ(status.reason, "slot 0 has pushed the save again");
  const auto joined = push(other, of(1)).value();
  EXPECT_NE(joined.name.push, part1.name.push) << "a part goes with one decision, for ever";
  EXPECT_EQ(joined.decision, again.decision);
  EXPECT_EQ(commit(joined, of(1)).value().state, State::committed);
  EXPECT_THAT(pushes_in(again.decision), ElementsAre(again.name.push, joined.name.push));
}

TEST_F(SlotsTest, AttemptsAreNeverMixed) {
  const auto push_share = [&](uint32_t number, unsigned seed, const std::string& attempt) {
    return push(BuiltImage("step_1", share(number, seed, attempt), {1, seed}), of(number)).value();
  };
  const auto first0 = push_share(0, 1, "first"), first1 = push_share(1, 1, "first");
  const auto second0 = push_share(0, 2, "second");
  auto status = commit(second0, of(0)).value();
  EXPECT_EQ(status.state, State::waits);
  EXPECT_EQ(status.missing, std::vector<uint32_t>{1}) << "slot 1 has a part of the first attempt alone";
  status = commit(first1, of(1)).value();
  EXPECT_EQ(status.state, State::committed) << "the first attempt was pushed by both";
  EXPECT_THAT(pushes_in(first0.decision), ElementsAre(first0.name.push, first1.name.push));
  EXPECT_EQ(commit(second0, of(0)).value().state, State::waits);
  const auto second1 = push_share(1, 2, "second");
  EXPECT_EQ(second1.decision, second0.decision);
  status = commit(second1, of(1)).value();
  EXPECT_EQ(status.state, State::committed);
  EXPECT_EQ(status.commit->name(), "step_1~2");
  EXPECT_THAT(pushes_in(second0.decision), ElementsAre(second0.name.push, second1.name.push));
  EXPECT_THAT(pushes_in(first0.decision), ElementsAre(first0.name.push, first1.name.push)) << "it stays as it is";
}

// No mount makes such a part.
TEST_F(SlotsTest, APartThatNamesAnotherAttemptThanItsSaveIsNotCommitted) {
  const BuiltImage one("step_1", share(0, 1, "first")), other("step_1", share(1, 1, "first"));
  const auto part0 = push(one, of(0)).value();
  const PushName wrong = new_push("step_1", 1);
  ASSERT_OK(build_part(wrong, share(1, 2, "second"), scratch_.path(), &store_, 2, part0.decision));
  const auto status = commit(part0, of(0)).value();
  EXPECT_EQ(status.state, State::incomplete);
  EXPECT_EQ(status.reason, "slots 0 and 1 hold different attempts of this step");
  EXPECT_THAT(store_.keys(kSteps), IsEmpty());
  const auto part1 = push(other, of(1)).value();
  EXPECT_EQ(commit(part0, of(0)).value().state, State::committed) << "the newer part counts";
  EXPECT_THAT(pushes_in(part0.decision), ElementsAre(part0.name.push, part1.name.push));
}

TEST_F(SlotsTest, PartsOfWhichThereIsNoUnionAreRefused) {
  const BuiltImage one("step_1", share(0, 1).file("both.bin", "x")), other("step_1", share(1, 1).file("both.bin", "y"));
  const auto part0 = push(one, of(0)).value(), part1 = push(other, of(1)).value();
  for (const auto& status : {commit(part0, of(0)).value(), commit(part1, of(1)).value()}) {
    EXPECT_EQ(status.state, State::refused);
    EXPECT_THAT(status.reason, HasSubstr("both.bin: slots 0 and 1 hold different files"));
  }
  EXPECT_THAT(store_.keys(kSteps), IsEmpty());
  const BuiltImage mended("step_1", share(1, 1).file("both.bin", "x"));
  const auto newer = push(mended, of(1)).value();
  EXPECT_EQ(commit(newer, of(1)).value().state, State::committed);
}

TEST_F(SlotsTest, WhatChangesAfterTheCommitWaitsForSlotZero) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1)), changed("step_1", share(1, 2));
  const auto part0 = push(one, of(0)).value(), part1 = push(other, of(1)).value();
  ASSERT_EQ(commit(part1, of(1)).value().state, State::committed);
  EXPECT_THAT(push(changed, of(1)).value().waits, HasSubstr("committed, without what has changed here since"));
  EXPECT_EQ(push(one, of(0)).value().name, part0.name) << "it has changed nothing";
  EXPECT_THAT(store_.keys(kSteps), SizeIs(1));
  const auto again = push(BuiltImage("step_1", share(0, 2)), of(0)).value();
  const auto joined = push(changed, of(1)).value();
  EXPECT_EQ(joined.decision, again.decision);
  EXPECT_EQ(commit(joined, of(1)).value().commit->name(), "step_1~2");
}

// The collector may have taken what only a removed commit names.
TEST_F(SlotsTest, WhatWasRemovedIsInNoOtherCommit) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1)), changed("step_1", share(1, 2));
  const auto part0 = push(one, of(0)).value(), part1 = push(other, of(1)).value();
  EXPECT_EQ(commit(part1, of(1)).value().state, State::committed);
  bury(part0.decision);
  const auto status = commit(part0, of(0)).value();
  EXPECT_EQ(status.state, State::committed) << "what was removed does not come back";
  EXPECT_TRUE(status.commit->gone);
  EXPECT_NE(push(changed, of(1)).value().waits, "");
  const auto anew = push(one, of(0)).value();
  EXPECT_NE(anew.name.push, part0.name.push);
  EXPECT_EQ(anew.copied, 0U) << "it would be from what is gone";
  EXPECT_EQ(commit(anew, of(0)).value().state, State::waits);
  const auto joined = push(changed, of(1)).value();
  EXPECT_EQ(joined.decision, anew.decision);
  EXPECT_EQ(commit(joined, of(1)).value().commit->name(), "step_1~2");
}

// The collector has ended it, since slot 0 did not come for a week. Nothing tells that it will.
TEST_F(SlotsTest, AnEndedPushThatWaitedSendsNothingUntilSlotZeroComes) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1));
  EXPECT_NE(push(other, of(1)).value().waits, "");
  const PushName ended = *journal(1).push();
  ASSERT_OK(store_.put(part_key(ended), io::content_of("ended"), io::PutMode::make, {}));
  for (int times = 0; times < 3; ++times) {
    EXPECT_EQ(push(other, of(1)).value().waits, "slot 0 did not push it yet");
    EXPECT_THAT(done_, IsEmpty());
  }
  const auto part0 = push(one, of(0)).value();
  const auto joined = push(other, of(1)).value();
  EXPECT_EQ(joined.decision, part0.decision);
  EXPECT_NE(joined.name.push, ended);
  EXPECT_EQ(commit(joined, of(1)).value().state, State::committed);
}

// Trainers that agree on nothing, on hosts whose clocks differ.
TEST_F(SlotsTest, WithoutAnAttemptTheirLivesTell) {
  const auto saved = [](uint32_t number, seconds ahead, seconds began) {
    BuiltPart part = share(number, 1, "");
    part.save.life = SaveLife{ahead + began, ahead + seconds(2000), ahead + seconds(2010), Milliseconds(10)};
    return part;
  };
  const auto push_from = [&](const BuiltImage& image, uint32_t number, seconds ahead) {
    settings_.clock = [this, ahead] { return store_.now + ahead; };
    return push(image, of(number)).value();
  };
  const seconds none(0), hour(3600);
  const BuiltImage one("step_1", saved(0, none, seconds(1000)));
  const auto part0 = push_from(one, 0, none);
  EXPECT_EQ(part0.waits, "");
  const BuiltImage younger("step_1", saved(1, hour, seconds(2005))), other("step_1", saved(1, hour, seconds(1001)));
  EXPECT_THAT(push_from(younger, 1, hour).waits, HasSubstr("it is of another run"));
  EXPECT_THAT(push_from(other, 1, none).waits, HasSubstr("it is of another run")) << "by the wrong clock";
  const BuiltImage unknown("step_1", share(1, 1, ""));
  EXPECT_THAT(push_from(unknown, 1, hour).waits, HasSubstr("this mount does not know who wrote them"));
  EXPECT_THAT(parts_of_tag("step_1"), SizeIs(1));
  const auto part1 = push_from(other, 1, hour);
  EXPECT_EQ(part1.waits, "");
  EXPECT_EQ(part1.decision, part0.decision);
  // By the store's clock, which tells whole seconds.
  const auto header = fetch_part_header(store_, part1.name.push, {});
  ASSERT_OK(header);
  EXPECT_EQ(header.value().save.life,
            (SaveLife{Milliseconds(1'001'500), Milliseconds(2'000'500), Milliseconds(2'010'500), Milliseconds(510)}));
  EXPECT_EQ(header.value().save.attempt, "");
  EXPECT_THAT(store_.keys(kProbe), IsEmpty());
  EXPECT_EQ(push_from(other, 1, hour).name, part1.name) << "it is found again";
  EXPECT_EQ(commit(part1, of(1)).value().state, State::committed);
}

TEST_F(SlotsTest, ASlotIsAwaitedOnceSlotZeroHasPushedItsSave) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1)), another("step_1", share(1, 1, "second"));
  const auto awaited = [&](const StepImage& image) {
    KnownParts known;
    return is_awaited(store_, of(1), image, known, settings_).value();
  };
  EXPECT_FALSE(awaited(other));
  ASSERT_OK(push(one, of(0)));
  EXPECT_TRUE(awaited(other));
  EXPECT_FALSE(awaited(another));
  const auto part1 = push(other, of(1)).value();
  ASSERT_EQ(commit(part1, of(1)).value().state, State::committed);
  EXPECT_FALSE(awaited(other));
}

// The store was restored from a copy; a list that comes late is no such thing.
TEST_F(SlotsTest, APartThatIsGoneIsPushedAgain) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1));
  const auto part0 = push(one, of(0)).value(), part1 = push(other, of(1)).value();
  ASSERT_OK(store_.remove(part_key(part1.name.push), {}));
  KnownParts known;
  DecisionMemory memory;
  int waited = 0;
  TagStatus status;
  do {
    status = decide(store_, of(1), part1, known, memory, settings_).value();
    EXPECT_THAT(status.reason, HasSubstr("missing in the list"));
  } while (status.state == State::waits && ++waited < 100);
  EXPECT_EQ(status.state, State::push_again);
  EXPECT_GT(waited, 2);
  const auto again = push(other, of(1)).value();
  EXPECT_EQ(again.decision, part0.decision);
  EXPECT_EQ(commit(again, of(1)).value().state, State::committed);
}

}  // namespace
}  // namespace ckptfs::meta::remote::testing

#include "meta/remote/push.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/mutex.h"
#include "meta/remote/election.h"
#include "meta/remote/part.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Fate = io::testing::MemoryStore::Fate;
using State = TagStatus::State;

class PushTest : public ::testing::Test {
 protected:
  PushTest() {
    settings_.folder = scratch_.path();
    settings_.piece_bytes = 2 * kChunkBytes;
    store_.fate = [this](const std::string& operation, const std::string& key) {  // files are sent at the same time
      const io::MutexLock lock(mutex_);
      if (operation != "get" && operation != "list") done_.push_back(operation + " " + key);
      return fate_(operation, key);
    };
  }
  Slot slot(uint32_t number = 0, uint32_t slots = 1, const std::string& host = "node0") const {
    return {number, slots, host, "mount of " + host};
  }
  PushJournal journal() { return PushJournal::open(scratch_.path() + "/journal", "remote").value(); }
  Result<PushedPart> push(const StepImage& image, const Slot& as) {
    PushJournal its_journal = journal();
    done_.clear();
    return push_part(store_, as, image, its_journal, settings_);
  }
  Result<TagStatus> commit(const StepImage& image, const PushedPart& part, const Slot& as) {
    ElectionMemory memory;
    return advance(store_, as, image, part, memory, settings_);
  }
  void push_and_commit(const StepImage& image) {
    const auto pushed = push(image, slot());
    ASSERT_OK(pushed);
    const auto status = commit(image, pushed.value(), slot());
    ASSERT_OK(status);
    ASSERT_EQ(status.value().state, State::committed) << status.value().reason;
  }
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
  const BuiltImage image("step_1", part);
  const auto pushed = push(image, slot());
  ASSERT_OK(pushed);
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
  EXPECT_EQ(fetched.value().header().number, 1U);
  EXPECT_EQ(fetched.value().entries().size(), 8U);
  EXPECT_EQ(fetched.value().name(), pushed.value().name);
  for (const auto& [path, entry] : part.entries) {
    if (entry.first.kind != Entry::Kind::file) continue;
    EXPECT_EQ(io::get_text(store_, name.folder() + path, 16 << 20, {}).value(), entry.second) << "as it is: " << path;
  }
}

TEST_F(PushTest, OfSeveralSlotsEachHasItsPlace) {
  const BuiltImage image("step_1", BuiltPart().file("a", "x"));
  const auto pushed = push(image, slot(3, 5));
  ASSERT_OK(pushed);
  EXPECT_THAT(store_.keys(pushed.value().name.push.folder()),
              ElementsAre(pushed.value().name.push.folder() + "slot-3/a"));
}

TEST_F(PushTest, SendsNothingTwice) {
  const BuiltImage image("step_1", five_chunks());
  const auto first = push(image, slot());
  ASSERT_OK(first);
  const auto second = push(image, slot());
  ASSERT_OK(second);
  EXPECT_TRUE(second.value().found);
  EXPECT_EQ(second.value().name, first.value().name);
  EXPECT_TRUE(done_.empty());
  const auto elsewhere = push(image, slot(0, 1, "node1"));
  ASSERT_OK(elsewhere);
  EXPECT_EQ(elsewhere.value().name.number, 2U);
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
  EXPECT_EQ(commit(image, pushed.value(), slot()).value().state, State::committed) << "it needs nothing of step_1";
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
  EXPECT_EQ(commit(image, pushed.value(), slot()).value().state, State::committed);
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
  EXPECT_EQ(commit(image, pushed.value(), slot()).value().state, State::committed);
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
    EXPECT_EQ(pushed.value().found, lost == "part");
    EXPECT_EQ(commit(image, pushed.value(), slot()).value().state, State::committed) << lost;
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

TEST_F(PushTest, TwoMountsOfOneSlotAreRefused) {
  const BuiltImage image("step_1", five_chunks());
  for (const char* const host : {"node0", "node1"}) {
    const PushName name{"step_1", 0, std::string(16, host[4])};
    PartHeader header = header_for(name, five_chunks(), 1);
    header.host = host;
    header.mount = host;
    auto writer = PartWriter::make(scratch_.path()).value();
    ASSERT_OK(writer.add(folder_entry(""), {}));
    const Part part = writer.finish(header).value();
    ASSERT_OK(store_.put(part_key(name), part.content(), io::PutMode::make, {}));
  }
  const auto pushed = push(image, slot());
  EXPECT_ERRNO(EEXIST, pushed);
  EXPECT_THAT(pushed.error().message(), HasSubstr("one on node0 and one on node1"));
}

class ElectionTest : public PushTest {
 protected:
  // A file of this slot alone.
  static BuiltPart share(uint32_t number, unsigned seed, const std::string& attempt = "") {
    BuiltPart part;
    part.file("rank" + std::to_string(number) + ".bin", bytes_for(50, seed));
    part.attempt = attempt;
    return part;
  }
  Slot of(uint32_t number) const { return slot(number, 2, "node" + std::to_string(number)); }
};

TEST_F(ElectionTest, EachSlotVotesAndAnyoneCommits) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1));
  const auto part0 = push(one, of(0));
  ASSERT_OK(part0);
  auto status = commit(one, part0.value(), of(0)).value();
  EXPECT_EQ(status.state, State::waits);
  EXPECT_EQ(status.missing, std::vector<uint32_t>{1});
  EXPECT_EQ(status.reason, "slot 1 did not push it yet");
  const auto part1 = push(other, of(1));
  ASSERT_OK(part1);
  status = commit(one, part0.value(), of(0)).value();
  EXPECT_EQ(status.reason, "slot 1 did not vote for it yet");
  status = commit(other, part1.value(), of(1)).value();
  EXPECT_EQ(status.state, State::committed);
  EXPECT_EQ(status.commit->name(), "step_1");
  EXPECT_EQ(commit(one, part0.value(), of(0)).value().state, State::committed);
}

TEST_F(ElectionTest, AVoteForOlderPartsIsVoided) {
  const BuiltImage one("step_1", share(0, 1)), before("step_1", share(1, 1)), after("step_1", share(1, 2));
  const auto part0 = push(one, of(0)).value();
  std::ignore = push(before, of(1)).value();
  EXPECT_EQ(commit(one, part0, of(0)).value().state, State::waits);
  const auto part1 = push(after, of(1)).value();
  EXPECT_EQ(commit(after, part1, of(1)).value().reason, "slot 0 did not vote for it yet");
  const auto status = commit(one, part0, of(0)).value();
  EXPECT_EQ(status.state, State::committed);
  EXPECT_EQ(status.commit->decision.n, 2U);
  EXPECT_EQ(status.commit->name(), "step_1");
}

TEST_F(ElectionTest, APartThatWasFoundMakesAVoidFirst) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1));
  const auto part0 = push(one, of(0)).value();
  std::ignore = push(other, of(1)).value();
  EXPECT_EQ(commit(one, part0, of(0)).value().state, State::waits);
  const auto found = push(other, of(1)).value();
  EXPECT_EQ(commit(other, found, of(1)).value().state, State::waits);
  EXPECT_EQ(commit(one, part0, of(0)).value().commit->decision.n, 2U);
}

// The collector may have taken what only a removed commit names.
TEST_F(ElectionTest, APartIsInOneCommitAtMost) {
  const BuiltImage one("step_1", share(0, 1)), other("step_1", share(1, 1)), changed("step_1", share(1, 2));
  const auto part0 = push(one, of(0)).value();
  const auto part1 = push(other, of(1)).value();
  EXPECT_EQ(commit(one, part0, of(0)).value().state, State::waits);
  EXPECT_EQ(commit(other, part1, of(1)).value().state, State::committed);
  EXPECT_TRUE(push(one, of(0)).value().found);  // nothing has changed
  const std::string gone = "{}";
  ASSERT_OK(store_.put(gone_key({"step_1", 1}), io::content_of(gone), io::PutMode::make, {}));
  EXPECT_EQ(commit(one, part0, of(0)).value().state, State::committed);  // what was removed does not come back
  const auto part2 = push(changed, of(1)).value();
  EXPECT_EQ(commit(one, part0, of(0)).value().state, State::push_again);
  const auto anew = push(one, of(0)).value();
  EXPECT_FALSE(anew.found);
  EXPECT_EQ(anew.copied, 0U);  // it would be from what is gone
  EXPECT_EQ(commit(changed, part2, of(1)).value().state, State::waits);
  const auto status = commit(one, anew, of(0)).value();
  EXPECT_EQ(status.state, State::committed);
  EXPECT_EQ(status.commit->name(), "step_1~2");
}

TEST_F(ElectionTest, BusyFilesAndOtherAttemptsWait) {
  BuiltImage one("step_1", share(0, 1, "first"));
  const BuiltImage other("step_1", share(1, 1, "second")), same("step_1", share(1, 2, "first"));
  one.quiet = false;
  const auto part0 = push(one, of(0)).value();
  const auto part1 = push(other, of(1)).value();
  auto status = commit(other, part1, of(1)).value();
  EXPECT_EQ(status.state, State::refused);
  EXPECT_THAT(status.reason, HasSubstr("different attempts: first and second"));
  const auto part2 = push(same, of(1)).value();
  EXPECT_EQ(commit(same, part2, of(1)).value().state, State::waits);
  status = commit(one, part0, of(0)).value();
  EXPECT_EQ(status.state, State::waits);
  EXPECT_TRUE(status.missing.empty());
  one.quiet = true;
  EXPECT_EQ(commit(one, part0, of(0)).value().state, State::committed);
  EXPECT_EQ(commit(other, part1, of(1)).value().state, State::push_again);
}

std::string newest_name(io::ObjectStore& store) { return newest(list_steps(store, {}).value())->name(); }

TEST_F(PushTest, NotesDoNotMakeAnOldStepTheNewest) {
  const auto saved = [](unsigned seed) { return BuiltPart().file("weights.bin", bytes_for(100, seed)); };
  const auto commits = [&](const std::string& tag, const BuiltPart& part) {
    store_.now += std::chrono::seconds(10);
    push_and_commit(BuiltImage(tag, part));
    return newest_name(store_);
  };
  EXPECT_EQ(commits("step_10", saved(10)), "step_10");
  EXPECT_EQ(commits("step_20", saved(20)), "step_20");
  EXPECT_EQ(commits("step_30", saved(30)), "step_30");
  EXPECT_EQ(commits("step_10", saved(10).file("eval_results.json", "{}")), "step_30");
  EXPECT_EQ(commits("step_10", saved(10).file("eval_results.json", "[]")), "step_30");
  EXPECT_EQ(commits("step_30", saved(30).file("eval_results.json", "{}")), "step_30~2") << "the newest itself";
  EXPECT_EQ(commits("step_20", saved(21)), "step_20~2") << "saved again";
  EXPECT_EQ(commits("step_30", saved(30).file("eval_results.json", "[]")), "step_20~2");
  EXPECT_EQ(commits("step_20", saved(21).file("README.md", "")), "step_20~3");
  EXPECT_EQ(commits("step_5", saved(5)), "step_5") << "another run";
  EXPECT_EQ(commits("step_30", saved(30)), "step_5");
}

// What was removed is not read. So nobody can tell whether the step was saved again.
TEST_F(PushTest, ARemovedCommitTellsNothing) {
  push_and_commit(BuiltImage("step_10", BuiltPart().file("weights.bin", "x")));
  store_.now += std::chrono::seconds(10);
  push_and_commit(BuiltImage("step_20", BuiltPart().file("weights.bin", "y")));
  const std::string gone = "{}";
  ASSERT_OK(store_.put(gone_key({"step_10", 1}), io::content_of(gone), io::PutMode::make, {}));
  store_.now += std::chrono::seconds(10);
  push_and_commit(BuiltImage("step_10", BuiltPart().file("weights.bin", "x").file("README.md", "")));
  EXPECT_EQ(newest_name(store_), "step_10~2");
}

// The slot that commits has changed nothing.
TEST_F(ElectionTest, AStepThatAnotherSlotSavedAgainIsTheNewest) {
  const auto commit_both = [this](const std::string& tag, const BuiltPart& first, const BuiltPart& second) {
    store_.now += std::chrono::seconds(10);
    const BuiltImage one(tag, first), other(tag, second);
    auto part0 = push(one, of(0)).value();
    auto part1 = push(other, of(1)).value();
    while (commit(one, part0, of(0)).value().state == State::push_again) part0 = push(one, of(0)).value();
    while (commit(other, part1, of(1)).value().state == State::push_again) part1 = push(other, of(1)).value();
    EXPECT_EQ(commit(one, part0, of(0)).value().state, State::committed);
    return newest_name(store_);
  };
  EXPECT_EQ(commit_both("step_1", share(0, 1), share(1, 1)), "step_1");
  EXPECT_EQ(commit_both("step_2", share(0, 2), share(1, 2)), "step_2");
  EXPECT_EQ(commit_both("step_1", share(0, 1).file("eval_results.json", "{}"), share(1, 1)), "step_2");
  EXPECT_EQ(commit_both("step_1", share(0, 3), share(1, 1)), "step_1~3");
}

}  // namespace
}  // namespace ckptfs::meta::remote::testing

#include "meta/remote/collector.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/fault.h"
#include "meta/remote/election.h"
#include "meta/remote/push.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_step.h"
#include "meta/remote/remote_usage.h"
#include "meta/remote/tombstone.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = TagStatus::State;

constexpr uint64_t kBytes = 1000;  // of each file of a step, which is one chunk

class CollectorTest : public ::testing::Test {
 protected:
  CollectorTest() {
    store_.now = std::chrono::sys_days(std::chrono::year(2026) / 11 / 1);
    pushing_.folder = scratch_.path();
    pushing_.piece_bytes = 2 * kBytes;
    collecting_.host = "node0";
  }
  void pass(std::chrono::seconds time) { store_.now += time; }
  void pass_days(int count) { pass(std::chrono::days(count)); }

  static BuiltPart part_of(unsigned seed) {
    BuiltPart part;
    for (const char* const name : {"frozen0.bin", "frozen1.bin"}) part.file(name, bytes_for(kBytes, 1));
    for (const char* const name : {"weights0.bin", "weights1.bin", "weights2.bin"}) {
      part.file(name, bytes_for(kBytes, seed));
    }
    return part;
  }
  static Slot slot(uint32_t number = 0, uint32_t slots = 1) {
    const std::string host = fmt::format("node{}", number);
    return {number, slots, host, "mount of " + host};
  }
  PushJournal journal(uint32_t of_slot = 0) {
    return PushJournal::open(fmt::format("{}/journal{}", scratch_.path(), of_slot), "remote").value();
  }
  PushedPart push(const StepImage& image, const Slot& as = slot()) {
    PushJournal its_journal = journal(as.slot);
    auto pushed = push_part(store_, as, image, its_journal, pushing_);
    EXPECT_OK(pushed);
    return pushed ? std::move(pushed).value() : PushedPart{};
  }
  TagStatus decide(const StepImage& image, const PushedPart& part, const Slot& as = slot()) {
    ElectionMemory memory;
    auto status = advance(store_, as, image, part, memory, pushing_);
    EXPECT_OK(status);
    return status ? std::move(status).value() : TagStatus{};
  }
  // Pushes it, and has it committed.
  void commit(const std::string& tag, unsigned seed) {
    const BuiltImage image(tag, part_of(seed));
    const PushedPart part = push(image);
    const TagStatus status = decide(image, part);
    EXPECT_EQ(status.state, State::committed) << status.reason;
    pass(std::chrono::minutes(1));
  }
  CommittedStep step(const std::string& name) { return find_step(store_, name, {}).value(); }
  void remove(const std::string& name) { ASSERT_OK(remove_step(store_, step(name), "node0", "by hand", {})); }
  void set(const std::string& rule, const std::string& value) {
    ASSERT_OK(change_rules(store_, "node0", [&](RemoteRules& rules) { return set_rule(rules, rule, value); }, {}));
  }
  Result<CollectorReport> run_once() { return collect(store_, collecting_); }
  CollectorReport ran() {
    auto report = run_once();
    EXPECT_OK(report);
    return report ? std::move(report).value() : CollectorReport{};
  }
  // A run a day, as a mount does it.
  CollectorReport run_for_days(int count) {
    CollectorReport last;
    for (int day = 0; day < count; ++day) {
      pass_days(1);
      last = ran();
    }
    return last;
  }
  // Reads all of it.
  Result<VerifyReport> verify(const std::string& name) {
    TRY_ASSIGN(const RemoteStep opened, RemoteStep::open(store_, step(name), scratch_.path(), {}));
    return verify_step(opened, 1, {});
  }
  void expect_whole(const std::string& name) {
    const auto verified = verify(name);
    ASSERT_OK(verified);
    EXPECT_THAT(verified.value().wrong, IsEmpty()) << name;
  }

  io::testing::ScratchFolder scratch_;
  io::testing::MemoryStore store_;
  PushSettings pushing_;
  CollectorSettings collecting_;
};

TEST_F(CollectorTest, WhatStandsIsLeftAlone) {
  commit("step_1", 1);
  commit("step_2", 2);
  EXPECT_FALSE(last_collection(store_, {}).value());
  auto before = store_.keys();
  std::erase_if(before, [](const std::string& key) { return key.starts_with(kPushes); });
  run_for_days(30);
  auto after = store_.keys();
  EXPECT_EQ(std::erase(after, kCollectedKey), 1U);
  EXPECT_EQ(after, before) << "but for what said that the pushes go on";
  EXPECT_EQ(last_collection(store_, {}).value()->host, "node0");
  EXPECT_EQ(last_collection(store_, {}).value()->when, store_.now);
}

TEST_F(CollectorTest, ARemovedStepIsReadableForADayAndGoesAtOnceThen) {
  commit("step_1", 1);
  commit("step_2", 2);
  remove("step_1");
  EXPECT_EQ(ran().waiting.objects, 7U) << "five files, the part, and what says that it goes on";
  pass(std::chrono::hours(23));
  EXPECT_EQ(ran().deleted.objects, 0U);
  expect_whole("step_1");
  pass(std::chrono::hours(2));
  const CollectorReport report = ran();
  EXPECT_GE(report.deleted.bytes, 5 * kBytes);
  EXPECT_EQ(report.waiting.objects, 0U);
  EXPECT_THAT(store_.keys("step_1."), IsEmpty());
  EXPECT_THAT(store_.keys(std::string(kParts) + "step_1/"), IsEmpty());
  EXPECT_FALSE(verify("step_1"));
  expect_whole("step_2");
  EXPECT_EQ(run_for_days(3).deleted.objects, 0U);
  EXPECT_THAT(store_.keys(kSteps), SizeIs(2)) << "commits stay: they count";
}

// A request that was on its way for long arrives when all of the step is deleted.
TEST_F(CollectorTest, WhatArrivesLateOfARemovedStepGoes) {
  commit("step_1", 1);
  commit("step_2", 2);
  const std::string file = store_.keys("step_1.").front(), part = store_.keys(std::string(kParts) + "step_1/").front();
  const auto objects = store_.copy();
  remove("step_1");
  run_for_days(3);
  for (const std::string& key : {file, part}) {
    ASSERT_OK(store_.put(key, io::content_of(std::string_view(objects.at(key).content)), io::PutMode::make, {}));
    run_for_days(1);
    EXPECT_THAT(store_.keys(key), IsEmpty());
  }
  expect_whole("step_2");
}

TEST_F(CollectorTest, WhatSaysThatAModelIsThereGoesFirst) {
  BuiltPart part = part_of(1);
  part.file("config.json", "{}");
  const BuiltImage image("step_1", part);
  EXPECT_EQ(decide(image, push(image)).state, State::committed);
  commit("step_2", 2);
  remove("step_1");
  pass_days(1);
  std::vector<std::string> removed;
  store_.fate = [&](const std::string& operation, const std::string& key) {
    if (operation == "remove" && key.starts_with("step_1.")) removed.push_back(key.substr(key.find('/') + 1));
    return io::testing::MemoryStore::Fate::done;
  };
  collecting_.parallel = 1;
  ran();
  ASSERT_THAT(removed, SizeIs(6));
  EXPECT_EQ(removed.front(), "config.json");
}

TEST_F(CollectorTest, RulesRemoveAllButWhatTheyKeep) {
  for (unsigned number = 1; number <= 8; ++number) commit(fmt::format("step_{}", number), number);
  set("keep_last", "2");
  set("keep_every", "5");
  ASSERT_OK(
      change_rules(store_, "node0", [](RemoteRules& rules) { return rules.pins.insert("step_2"), success(); }, {}));
  collecting_.dry_run = true;
  EXPECT_THAT(ran().removed, SizeIs(4));
  EXPECT_THAT(store_.keys(kGone), IsEmpty());
  collecting_.dry_run = false;
  const CollectorReport report = ran();
  ASSERT_THAT(report.removed, SizeIs(4));
  EXPECT_THAT(report.removed[0].why, HasSubstr("keep_every=5, keep_last=2"));
  EXPECT_THAT(store_.keys(kGone), ElementsAre(gone_key({"step_1", 1}), gone_key({"step_3", 1}), gone_key({"step_4", 1}),
                                              gone_key({"step_6", 1})));
  run_for_days(4);
  for (const char* const name : {"step_2", "step_5", "step_7", "step_8"}) expect_whole(name);
}

// A step that was pushed again has a name of its own. A pin, a removal and a rule reach the commit that they name.
TEST_F(CollectorTest, APinHoldsTheCommitThatItNames) {
  commit("step_1", 1);
  commit("step_1", 2);
  commit("step_2", 3);
  set("keep_last", "1");
  collecting_.dry_run = true;
  for (const std::string pinned : {"step_1", "step_1~2"}) {
    ASSERT_OK(change_rules(store_, "node0", [&](RemoteRules& rules) { return rules.pins = {pinned}, success(); }, {}));
    const CollectorReport report = ran();
    ASSERT_THAT(report.removed, SizeIs(1)) << pinned;
    EXPECT_EQ(report.removed[0].step.name(), pinned == "step_1" ? "step_1~2" : "step_1");
  }
  collecting_.dry_run = false;
  ran();
  EXPECT_THAT(store_.keys(kGone), ElementsAre(gone_key({"step_1", 1})));
  run_for_days(4);
  for (const char* const name : {"step_1~2", "step_2"}) expect_whole(name);
  EXPECT_FALSE(verify("step_1"));
}

TEST_F(CollectorTest, NoRuleRemovesTheNewestStep) {
  commit("step_1", 1);
  set("keep_for", "1h");
  commit("step_2", 2);
  pass_days(10);
  EXPECT_THAT(ran().removed, SizeIs(1));
  expect_whole("step_2");
}

TEST_F(CollectorTest, ADryRunWritesNothing) {
  commit("step_1", 1);
  commit("step_2", 2);
  set("keep_last", "1");
  run_for_days(1);  // step_1 gets its tombstone; its files wait
  pass_days(2);
  const auto before = store_.keys();
  collecting_.dry_run = true;
  EXPECT_GE(ran().deleted.objects, 6U) << "five files and the part would go";
  EXPECT_EQ(store_.keys(), before);
}

TEST_F(CollectorTest, APushWithoutNewsForAWeekIsEndedAndBeginsAnew) {
  commit("step_1", 1);
  const BuiltImage image("step_2", part_of(2));
  store_.fate = [](const std::string& operation, const std::string& key) {
    const bool is_part = operation == "put" && key.starts_with(kParts);
    return is_part ? io::testing::MemoryStore::Fate::refused : io::testing::MemoryStore::Fate::done;
  };
  {
    PushJournal its_journal = journal();
    EXPECT_FALSE(push_part(store_, slot(), image, its_journal, pushing_));
  }
  store_.fate = [](auto&, auto&) { return io::testing::MemoryStore::Fate::done; };
  ASSERT_THAT(store_.keys("step_2."), SizeIs(5));
  run_for_days(6);
  EXPECT_THAT(store_.keys(std::string(kParts) + "step_2/"), IsEmpty());
  pass_days(2);
  EXPECT_THAT(ran().ended, SizeIs(1));
  EXPECT_THAT(store_.keys(std::string(kParts) + "step_2/"), SizeIs(1));
  run_for_days(1);
  EXPECT_THAT(store_.keys("step_2."), IsEmpty());
  EXPECT_THAT(store_.keys(std::string(kParts) + "step_2/"), SizeIs(1)) << "what took the part's name stays";
  const PushedPart part = push(image);  // with the journal of the push that was ended
  EXPECT_EQ(decide(image, part).state, State::committed);
  expect_whole("step_2");
}

TEST_F(CollectorTest, APartThatStaysUndecidedIsEnded) {
  const BuiltImage image("step_1", part_of(1));
  const PushedPart part = push(image, slot(0, 2));
  EXPECT_EQ(decide(image, part, slot(0, 2)).missing, std::vector<uint32_t>{1});
  run_for_days(6);
  EXPECT_THAT(store_.keys(kSteps), IsEmpty());
  run_for_days(2);
  EXPECT_THAT(store_.keys(kSteps), ElementsAre(step_key({"step_1", 1})));
  run_for_days(1);
  EXPECT_THAT(store_.keys("step_1."), IsEmpty());
  EXPECT_THAT(store_.keys(kParts), IsEmpty());

  // The other slot comes at last. The part that was ended is not voted for.
  BuiltPart other;
  other.file("other.bin", bytes_for(100, 9));
  const BuiltImage other_image("step_1", other);
  const PushedPart other_part = push(other_image, slot(1, 2));
  EXPECT_THAT(decide(other_image, other_part, slot(1, 2)).missing, ElementsAre(0U));
  const PushedPart again = push(image, slot(0, 2));
  EXPECT_FALSE(again.found);
  EXPECT_EQ(decide(image, again, slot(0, 2)).state, State::waits);
  EXPECT_EQ(decide(other_image, other_part, slot(1, 2)).state, State::committed);
  expect_whole("step_1");
}

// A slot voted, and was stopped. When it looks again, the commit has been removed, and all parts are deleted.
TEST_F(CollectorTest, WhoLooksWhenTheCommitIsGoneIsTold) {
  BuiltPart other;
  other.file("other.bin", bytes_for(100, 9));
  const BuiltImage image("step_1", part_of(1)), other_image("step_1", other);
  const PushedPart part = push(image, slot(0, 2)), other_part = push(other_image, slot(1, 2));
  EXPECT_EQ(decide(image, part, slot(0, 2)).state, State::waits);
  EXPECT_EQ(decide(other_image, other_part, slot(1, 2)).state, State::committed);
  remove("step_1");
  run_for_days(4);
  ASSERT_THAT(store_.keys(kParts), IsEmpty());
  const TagStatus status = decide(image, part, slot(0, 2));
  EXPECT_EQ(status.state, State::committed) << status.reason;
  EXPECT_TRUE(status.commit->gone);

  // The other slot changes it: then this one's part is needed again, and is a new one.
  other.file("other.bin", bytes_for(100, 10));
  const BuiltImage changed("step_1", other);
  push(changed, slot(1, 2));
  EXPECT_EQ(decide(image, part, slot(0, 2)).state, State::push_again);
}

// A mount that was stopped all the while still holds the part's name.
TEST_F(CollectorTest, WhoStillHoldsAnEndedPartIsTold) {
  const BuiltImage image("step_1", part_of(1));
  const PushedPart part = push(image, slot(0, 2));
  run_for_days(8);
  BuiltPart other;
  other.file("other.bin", bytes_for(100, 9));
  const BuiltImage other_image("step_1", other);
  push(other_image, slot(1, 2));
  EXPECT_EQ(decide(image, part, slot(0, 2)).state, State::ended);
  EXPECT_THAT(store_.keys(kVotes), IsEmpty());
}

// If the parts of both were ended, each would wait for the other.
TEST_F(CollectorTest, ASlotWhosePartWasEndedWaitsForNobody) {
  const BuiltImage image("step_1", part_of(1));
  const PushedPart part = push(image, slot(0, 2));
  run_for_days(8);
  EXPECT_EQ(decide(image, part, slot(0, 2)).state, State::ended);
}

// The part of its second commit is gone, so that of the first one is the newest that is listed.
TEST_F(CollectorTest, AStepThatIsAgainAsItOnceWasIsCommittedAnew) {
  commit("step_1", 1);
  commit("step_1", 2);
  commit("step_2", 3);
  remove("step_1~2");
  run_for_days(4);
  commit("step_1", 1);
  expect_whole("step_1~3");
}

// The try whose reply was lost has made it.
TEST_F(CollectorTest, AProbeThatIsThereIsItsOwn) {
  collecting_.id = [] { return std::string("0123456789abcdef"); };
  ASSERT_OK(store_.put(std::string(kProbe) + "0123456789abcdef", io::content_of(std::string_view("?")),
                       io::PutMode::make, {}));
  ran();
}

// Its part was put, the reply was lost, and the machine was off for a month: the journal names files that are gone.
TEST_F(CollectorTest, AJournalOfLongAgoIsNotTrusted) {
  const BuiltImage image("step_1", part_of(1));
  {
    PushJournal its_journal = journal();
    store_.fate = [](const std::string& operation, const std::string& key) {
      const bool is_part = operation == "put" && key.starts_with(kParts);
      return is_part ? io::testing::MemoryStore::Fate::reply_lost : io::testing::MemoryStore::Fate::done;
    };
    EXPECT_FALSE(push_part(store_, slot(), image, its_journal, pushing_));
    store_.fate = [](auto&, auto&) { return io::testing::MemoryStore::Fate::done; };
  }
  run_for_days(12);
  EXPECT_THAT(store_.keys("step_1."), IsEmpty());
  const PushedPart part = push(image);
  EXPECT_EQ(part.copied, 0U);
  EXPECT_EQ(decide(image, part).state, State::committed);
  expect_whole("step_1");
}

TEST_F(CollectorTest, NumbersGoOnWhenOldPartsAreGone) {
  commit("step_1", 1);
  commit("step_2", 2);
  remove("step_1");
  run_for_days(4);
  ASSERT_THAT(store_.keys(std::string(kParts) + "step_1/"), IsEmpty());
  const BuiltImage image("step_1", part_of(7));
  EXPECT_EQ(push(image).name.number, 2U);
}

TEST_F(CollectorTest, ARemovedStepIsKnownByItsContent) {
  commit("step_1", 1);
  commit("step_2", 2);
  const BuiltImage image("step_1", part_of(1)), changed("step_1", part_of(3));
  const io::Digest content = content_of(image).value();
  EXPECT_FALSE(find_removed(store_, "step_1", 0, content, {}).value());
  remove("step_1");
  const auto removed = find_removed(store_, "step_1", 0, content, {});
  ASSERT_OK(removed);
  ASSERT_TRUE(removed.value());
  EXPECT_EQ(removed.value()->why, "by hand");
  EXPECT_FALSE(find_removed(store_, "step_1", 0, content_of(changed).value(), {}).value());
  run_for_days(4);
  EXPECT_TRUE(find_removed(store_, "step_1", 0, content, {}).value()) << "also when its part is gone";
}

TEST_F(CollectorTest, TheCostOfAStepIsWhatItsRemovalGivesBack) {
  for (const unsigned seed : {1U, 2U, 3U}) commit(fmt::format("step_{}", seed), seed);
  const auto usage = measure_usage(store_, {});
  ASSERT_OK(usage);
  ASSERT_THAT(usage.value().steps, SizeIs(3));
  for (const StepUsage& step : usage.value().steps) {
    EXPECT_EQ(step.bytes, 5 * kBytes);
    EXPECT_EQ(step.objects, 5U);
  }
  EXPECT_EQ(usage.value().needed, 15 * kBytes);
  EXPECT_EQ(usage.value().needless, 0U);
  remove("step_2");
  EXPECT_EQ(measure_usage(store_, {}).value().needless, 5 * kBytes);
  run_for_days(2);
  const RemoteUsage after = measure_usage(store_, {}).value();
  EXPECT_EQ(after.needless, 0U);
  EXPECT_EQ(after.needed, 10 * kBytes);
}

// --- what is not as it should be

TEST_F(CollectorTest, AListThatLacksADecisionStopsIt) {
  commit("step_1", 1);
  commit("step_2", 2);
  remove("step_1");
  auto without = store_.copy();
  without.erase(step_key({"step_1", 1}));
  store_.restore(without);
  const auto report = run_once();
  ASSERT_FALSE(report);
  EXPECT_ERRNO(EIO, report);
  EXPECT_THAT(report.error().message(), HasSubstr(step_key({"step_1", 1})));
}

// A step that somebody has damaged there does not push out those that are whole, and is not removed itself.
TEST_F(CollectorTest, AStepThatLacksFilesCountsForNoRule) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) commit(fmt::format("step_{}", seed), seed);
  set("keep_last", "2");
  const std::string lost = store_.keys("step_4.").front(), part = store_.keys(std::string(kParts) + "step_3/").front();
  const auto whole = store_.copy();
  ASSERT_OK(store_.remove(lost, {}));
  ASSERT_OK(store_.remove(part, {}));
  const CollectorReport report = ran();
  EXPECT_THAT(report.removed, IsEmpty()) << "step_1 and step_2 are the newest that are whole";
  ASSERT_THAT(report.warnings, SizeIs(2));
  EXPECT_THAT(report.warnings[0], HasSubstr("step_3: its part is not there"));
  EXPECT_THAT(report.warnings[1], HasSubstr("step_4: 4 of 5 files are there"));
  EXPECT_THAT(report.warnings[1], HasSubstr("that step is damaged"));
  run_for_days(3);
  for (const char* const name : {"step_1", "step_2"}) expect_whole(name);
  EXPECT_THAT(store_.keys(kGone), IsEmpty());
  collecting_.dry_run = true;
  io::set_fault("damaged_counts", "1");
  EXPECT_THAT(ran().removed, SizeIs(2)) << "else they would go";
  io::set_fault("damaged_counts", "");
  collecting_.dry_run = false;
  remove("step_3");
  run_for_days(2);
  EXPECT_THAT(store_.keys("step_3."), IsEmpty()) << "by hand it goes";
  store_.restore(whole);
  EXPECT_THAT(ran().removed, SizeIs(2));
}

// Who brings the part back has the step back: its files stay, however long that takes.
TEST_F(CollectorTest, AStepWhosePartIsLostKeepsItsFiles) {
  commit("step_1", 1);
  commit("step_2", 2);
  const auto whole = store_.copy();
  const std::string part = store_.keys(std::string(kParts) + "step_1/").front();
  ASSERT_OK(store_.remove(part, {}));
  const CollectorReport report = run_for_days(20);
  EXPECT_THAT(report.ended, IsEmpty());
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("step_1: its part is not there")));
  EXPECT_THAT(store_.keys("step_1."), SizeIs(5));
  ASSERT_OK(store_.put(part, io::content_of(std::string_view(whole.at(part).content)), io::PutMode::make, {}));
  expect_whole("step_1");
}

// What it restores from is older: the tombstones are gone, so the steps stand again.
TEST_F(CollectorTest, AStoreThatWasRestoredLosesNothingMore) {
  commit("step_1", 1);
  commit("step_2", 2);
  const auto older = store_.copy();
  remove("step_1");
  run_for_days(3);
  ASSERT_THAT(store_.keys("step_1."), IsEmpty());
  store_.restore(older);
  run_for_days(4);
  for (const char* const name : {"step_1", "step_2"}) expect_whole(name);
}

TEST_F(CollectorTest, WhatIsForeignIsNamedAndStays) {
  commit("step_1", 1);
  const std::string mine = "mine.0123456789abcdef/model.bin";
  for (const std::string& key : {std::string("notes/mine.txt"), mine}) {
    ASSERT_OK(store_.put(key, io::content_of(std::string_view("hello")), io::PutMode::make, {}));
  }
  pass_days(1);
  EXPECT_THAT(ran().warnings, ElementsAre(HasSubstr("mine.0123456789abcdef/"), HasSubstr("notes/mine.txt")));
  run_for_days(20);
  EXPECT_THAT(store_.keys("notes/"), SizeIs(1));
  EXPECT_THAT(store_.keys(mine), SizeIs(1));
  expect_whole("step_1");
}

TEST_F(CollectorTest, ADamagedCommitStopsIt) {
  commit("step_1", 1);
  commit("step_2", 2);
  auto objects = store_.copy();
  objects.at(step_key({"step_1", 1})).content.replace(3, 5, "XXXXX");
  store_.restore(objects);
  const auto report = run_once();
  ASSERT_FALSE(report);
  EXPECT_ERRNO(EBADMSG, report);
  EXPECT_THAT(report.error().message(), HasSubstr(step_key({"step_1", 1})));
}

TEST_F(CollectorTest, UploadsOfDeadProcessesEnd) {
  const BuiltImage image("step_1", BuiltPart().file("large", bytes_for(3 * kChunkBytes, 1)));
  store_.fate = [](const std::string& operation, auto&) {
    return operation == "complete" ? io::testing::MemoryStore::Fate::refused : io::testing::MemoryStore::Fate::done;
  };
  ASSERT_OK(found_remote(store_, 1, "node0", {}));
  {
    PushJournal its_journal = journal();
    EXPECT_FALSE(push_part(store_, slot(), image, its_journal, pushing_));
  }
  EXPECT_EQ(run_for_days(6).uploads, 0U);
  EXPECT_EQ(store_.uploads(), 1U);
  EXPECT_EQ(run_for_days(1).uploads, 1U);
  EXPECT_EQ(store_.uploads(), 0U);
}

}  // namespace
}  // namespace ckptfs::meta::remote::testing

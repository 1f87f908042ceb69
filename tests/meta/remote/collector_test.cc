#include "meta/remote/collector.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/fault.h"
#include "meta/remote/election.h"
#include "meta/remote/push.h"
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
    pushing_.pack_bytes = 2 * kBytes;
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
  Result<CollectorReport> look() { return collect(store_, collecting_, memory_); }
  CollectorReport looked() {
    auto report = look();
    EXPECT_OK(report);
    return report ? std::move(report).value() : CollectorReport{};
  }
  // A look a day, as a mount does it.
  CollectorReport look_for_days(int count) {
    CollectorReport last;
    for (int day = 0; day < count; ++day) {
      pass_days(1);
      last = looked();
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
  std::optional<Look> memory_;
};

TEST_F(CollectorTest, WhatStandsIsLeftAlone) {
  commit("step_1", 1);
  commit("step_2", 2);
  const auto before = store_.keys();
  look_for_days(30);
  auto after = store_.keys();
  std::erase_if(after, [](const std::string& key) { return key.starts_with(kLooks); });
  EXPECT_EQ(after, before);
  EXPECT_THAT(store_.keys(kLooks), SizeIs(2)) << "older looks go";
}

TEST_F(CollectorTest, ARemovedStepIsReadableForADayAndGoesAfterTwoLooks) {
  commit("step_1", 1);
  commit("step_2", 2);
  looked();
  remove("step_1");
  EXPECT_EQ(looked().garbage.objects, 0U);
  pass(std::chrono::hours(23));
  EXPECT_EQ(looked().garbage.objects, 0U);
  expect_whole("step_1");
  pass(std::chrono::hours(2));
  const CollectorReport first = looked();
  EXPECT_EQ(first.garbage.objects, 3U) << "two packs that only it uses, and its part";
  EXPECT_EQ(first.deleted.objects, 0U);
  EXPECT_EQ(looked().deleted.objects, 0U) << "not yet a day later";
  pass(std::chrono::hours(25));
  EXPECT_EQ(looked().deleted.objects, 3U);
  EXPECT_FALSE(verify("step_1"));
  expect_whole("step_2");
  EXPECT_EQ(look_for_days(3).deleted.objects, 0U);
  EXPECT_THAT(store_.keys(kSteps), SizeIs(2)) << "commits stay: they count";
}

// step_2 borrows the frozen chunks of step_1, and step_3 has them through step_2.
TEST_F(CollectorTest, ABorrowedPackKeepsOnlyItself) {
  for (const unsigned seed : {1U, 2U, 3U}) commit(fmt::format("step_{}", seed), seed);
  const auto packs_before = store_.keys(kPacks);
  remove("step_1");
  remove("step_2");
  look_for_days(5);
  const auto packs = store_.keys(kPacks);
  EXPECT_LT(packs.size(), packs_before.size());
  EXPECT_THAT(packs, ::testing::Contains(HasSubstr("packs/step_1/"))) << "the frozen chunks";
  EXPECT_THAT(store_.keys("packs/step_2/"), IsEmpty());
  expect_whole("step_3");
  commit("step_4", 4);
  expect_whole("step_4");
}

TEST_F(CollectorTest, RulesRemoveAllButWhatTheyKeep) {
  for (unsigned number = 1; number <= 8; ++number) commit(fmt::format("step_{}", number), number);
  set("keep_last", "2");
  set("keep_every", "5");
  ASSERT_OK(
      change_rules(store_, "node0", [](RemoteRules& rules) { return rules.pins.insert("step_2"), success(); }, {}));
  collecting_.dry_run = true;
  EXPECT_THAT(looked().removed, SizeIs(4));
  EXPECT_THAT(store_.keys(kGone), IsEmpty());
  collecting_.dry_run = false;
  const CollectorReport report = looked();
  ASSERT_THAT(report.removed, SizeIs(4));
  EXPECT_THAT(report.removed[0].why, HasSubstr("keep_every=5, keep_last=2"));
  EXPECT_THAT(store_.keys(kGone), ElementsAre("gone/step_1/1", "gone/step_3/1", "gone/step_4/1", "gone/step_6/1"));
  look_for_days(4);
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
    const CollectorReport report = looked();
    ASSERT_THAT(report.removed, SizeIs(1)) << pinned;
    EXPECT_EQ(report.removed[0].step.name(), pinned == "step_1" ? "step_1~2" : "step_1");
  }
  collecting_.dry_run = false;
  looked();
  EXPECT_THAT(store_.keys(kGone), ElementsAre("gone/step_1/1"));
  look_for_days(4);
  for (const char* const name : {"step_1~2", "step_2"}) expect_whole(name);
  EXPECT_FALSE(verify("step_1"));
}

TEST_F(CollectorTest, NoRuleRemovesTheNewestStep) {
  commit("step_1", 1);
  set("keep_for", "1h");
  commit("step_2", 2);
  pass_days(10);
  EXPECT_THAT(looked().removed, SizeIs(1));
  expect_whole("step_2");
}

TEST_F(CollectorTest, ADryRunWritesNothing) {
  commit("step_1", 1);
  commit("step_2", 2);
  set("keep_last", "1");
  look_for_days(2);
  pass_days(2);
  const auto before = store_.keys();
  collecting_.dry_run = true;
  looked();
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
  ASSERT_THAT(store_.keys("packs/step_2/"), SizeIs(2));
  look_for_days(6);
  EXPECT_THAT(store_.keys("parts/step_2/"), IsEmpty());
  pass_days(2);
  EXPECT_THAT(looked().ended, SizeIs(1));
  EXPECT_THAT(store_.keys("parts/step_2/"), SizeIs(1));
  look_for_days(3);
  EXPECT_THAT(store_.keys("packs/step_2/"), IsEmpty());
  EXPECT_THAT(store_.keys("parts/step_2/"), SizeIs(1)) << "what took the part's name stays";
  const PushedPart part = push(image);  // with the journal of the push that was ended
  EXPECT_EQ(decide(image, part).state, State::committed);
  expect_whole("step_2");
}

TEST_F(CollectorTest, APartThatStaysUndecidedIsEnded) {
  const BuiltImage image("step_1", part_of(1));
  const PushedPart part = push(image, slot(0, 2));
  EXPECT_EQ(decide(image, part, slot(0, 2)).missing, std::vector<uint32_t>{1});
  look_for_days(6);
  EXPECT_THAT(store_.keys(kSteps), IsEmpty());
  look_for_days(2);
  EXPECT_THAT(store_.keys(kSteps), ElementsAre("steps/step_1/1"));
  look_for_days(3);
  EXPECT_THAT(store_.keys(kPacks), IsEmpty());
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
  look_for_days(4);
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
  look_for_days(8);
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
  look_for_days(8);
  EXPECT_EQ(decide(image, part, slot(0, 2)).state, State::ended);
}

// The part of its second commit is gone, so that of the first one is the newest that is listed.
TEST_F(CollectorTest, AStepThatIsAgainAsItOnceWasIsCommittedAnew) {
  commit("step_1", 1);
  commit("step_1", 2);
  commit("step_2", 3);
  remove("step_1~2");
  look_for_days(4);
  commit("step_1", 1);
  expect_whole("step_1~3");
}

// The try whose reply was lost has made it.
TEST_F(CollectorTest, AProbeThatIsThereIsItsOwn) {
  collecting_.id = [] { return std::string("0123456789abcdef"); };
  ASSERT_OK(store_.put("probe/0123456789abcdef", io::content_of(std::string_view("?")), io::PutMode::make, {}));
  looked();
}

// Its part was put, the reply was lost, and the machine was off for a month: the journal names packs that are gone.
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
  look_for_days(12);
  EXPECT_THAT(store_.keys(kPacks), IsEmpty());
  const PushedPart part = push(image);
  EXPECT_EQ(part.borrowed, 0U);
  EXPECT_EQ(decide(image, part).state, State::committed);
  expect_whole("step_1");
}

TEST_F(CollectorTest, NumbersGoOnWhenOldPartsAreGone) {
  commit("step_1", 1);
  commit("step_2", 2);
  remove("step_1");
  look_for_days(4);
  ASSERT_THAT(store_.keys("parts/step_1/"), IsEmpty());
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
  look_for_days(4);
  EXPECT_TRUE(find_removed(store_, "step_1", 0, content, {}).value()) << "also when its part is gone";
}

TEST_F(CollectorTest, TheCostOfAStepIsWhatItsRemovalGivesBack) {
  for (const unsigned seed : {1U, 2U, 3U}) commit(fmt::format("step_{}", seed), seed);
  const auto usage = measure_usage(store_, {});
  ASSERT_OK(usage);
  ASSERT_THAT(usage.value().steps, SizeIs(3));
  for (const StepUsage& step : usage.value().steps) EXPECT_EQ(step.files, 5 * kBytes);
  EXPECT_EQ(usage.value().steps[0].shared, 2 * kBytes) << "the frozen chunks";
  EXPECT_EQ(usage.value().steps[0].alone, 3 * kBytes);
  EXPECT_EQ(usage.value().steps[1].alone, 3 * kBytes);
  EXPECT_EQ(usage.value().needed, 11 * kBytes);
  remove("step_2");
  EXPECT_EQ(measure_usage(store_, {}).value().needless, 3 * kBytes);
  look_for_days(4);
  const RemoteUsage after = measure_usage(store_, {}).value();
  EXPECT_EQ(after.needless, 0U);
  EXPECT_EQ(usage.value().needed - after.needed, usage.value().steps[1].alone);
}

// --- what is not as it should be

TEST_F(CollectorTest, AListThatLacksADecisionStopsIt) {
  commit("step_1", 1);
  commit("step_2", 2);
  looked();
  remove("step_1");
  const auto whole = store_.copy();
  for (const std::string key : {"steps/step_2/1", "steps/step_1/1"}) {
    auto without = whole;
    without.erase(key);
    store_.restore(without);
    const auto report = look();
    ASSERT_FALSE(report);
    EXPECT_ERRNO(EIO, report);
    EXPECT_THAT(report.error().message(), HasSubstr(key));
  }
  store_.restore(whole);
  looked();
}

TEST_F(CollectorTest, AListThatLacksAPartStopsIt) {
  commit("step_1", 1);
  const BuiltImage image("step_2", part_of(2));
  push(image, slot(0, 2));
  looked();
  const auto whole = store_.copy();
  for (const char* const tag : {"step_1", "step_2"}) {
    auto without = whole;
    std::erase_if(without, [&](const auto& one) { return one.first.starts_with(std::string(kParts) + tag); });
    store_.restore(without);
    const auto report = look();
    ASSERT_FALSE(report);
    EXPECT_ERRNO(EIO, report);
    EXPECT_THAT(report.error().message(), HasSubstr(tag));
  }
}

TEST_F(CollectorTest, AStoreThatWasRolledBackIsKnownByWhoRemembers) {
  commit("step_1", 1);
  commit("step_2", 2);
  looked();
  const auto older = store_.copy();
  remove("step_1");
  look_for_days(2);
  store_.restore(older);
  const auto before = store_.keys();
  const auto report = look();
  ASSERT_FALSE(report);
  EXPECT_ERRNO(EIO, report);
  EXPECT_THAT(report.error().message(), HasSubstr("gc --restored"));
  EXPECT_EQ(store_.keys(), before);

  collecting_.restored = true;
  looked();
  collecting_.restored = false;
  std::optional<Look> elsewhere = Look();  // another machine, which remembers the time before
  elsewhere->tags["step_1"] = {1, {1}};
  ASSERT_OK(collect(store_, collecting_, elsewhere));
  look_for_days(4);
  expect_whole("step_1");
}

TEST_F(CollectorTest, WhoWasToldOfARestoredStoreKnowsOfASecondOne) {
  commit("step_1", 1);
  looked();
  const auto older = store_.copy();
  collecting_.restored = true;
  looked();
  collecting_.restored = false;
  commit("step_2", 2);
  looked();
  store_.restore(older);  // from before somebody said so
  const auto report = look();
  ASSERT_FALSE(report);
  EXPECT_ERRNO(EIO, report);
  EXPECT_THAT(report.error().message(), HasSubstr("gc --restored"));
  collecting_.restored = true;
  looked();
  collecting_.restored = false;
  look_for_days(2);
}

TEST_F(CollectorTest, WhatIsMissingAndWhatIsForeignIsNamed) {
  commit("step_1", 1);
  commit("step_2", 2);
  ASSERT_OK(store_.put("notes/mine.txt", io::content_of(std::string_view("hello")), io::PutMode::make, {}));
  const std::string pack = store_.keys("packs/step_2/").front();
  ASSERT_OK(store_.remove(pack, {}));
  pass_days(2);
  const CollectorReport report = looked();
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr(pack), HasSubstr("notes/mine.txt")));
  look_for_days(4);
  EXPECT_THAT(store_.keys("notes/"), SizeIs(1));
  expect_whole("step_1");
}

// It stops everything else, but it can be removed itself.
TEST_F(CollectorTest, ADamagedPartStopsItUntilItsStepIsRemoved) {
  commit("step_1", 1);
  commit("step_2", 2);
  auto objects = store_.copy();
  objects.at(store_.keys("parts/step_1/").front()).content.replace(3, 5, "XXXXX");
  store_.restore(objects);
  const auto report = look();
  ASSERT_FALSE(report);
  EXPECT_ERRNO(EBADMSG, report);
  EXPECT_THAT(report.error().message(), HasSubstr("parts/step_1/"));
  remove("step_1");
  look_for_days(4);
  EXPECT_THAT(store_.keys("parts/step_1/"), IsEmpty());
  expect_whole("step_2");
}

}  // namespace
}  // namespace ckptfs::meta::remote::testing

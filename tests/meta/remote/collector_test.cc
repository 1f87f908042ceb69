#include "meta/remote/collector.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "io/fault.h"
#include "meta/remote/decide.h"
#include "meta/remote/push.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_step.h"
#include "meta/remote/remote_usage.h"
#include "meta/remote/slot_owner.h"
#include "meta/remote/slot_parts.h"
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
using ::testing::UnorderedElementsAreArray;
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
    part.save.attempt = "5f3a";
    return part;
  }
  // What slot 1 has of the same save.
  static BuiltPart second_part_of(unsigned seed) {
    BuiltPart part;
    part.file("other.bin", bytes_for(100, seed));
    part.save.attempt = "5f3a";
    return part;
  }
  // Of a save that comes after all before it.
  Order next_order() { return {1, ++saves_}; }
  static Slot slot(uint32_t number = 0, uint32_t slots = 1) {
    const std::string host = fmt::format("node{}", number);
    return {number, slots, host, "mount of " + host};
  }
  PushJournal journal(uint32_t of_slot = 0) {
    return PushJournal::open(fmt::format("{}/journal{}", scratch_.path(), of_slot), "remote").value();
  }
  PushedPart push(const StepImage& image, const Slot& as = slot()) {
    PushJournal its_journal = journal(as.slot);
    KnownParts known;
    pass(std::chrono::seconds(1));  // so that lists tell which part is the newer one
    auto pushed = push_part(store_, as, image, its_journal, known, pushing_);
    EXPECT_OK(pushed);
    return pushed ? std::move(pushed).value() : PushedPart{};
  }
  // A push that fails.
  void push_in_vain(const StepImage& image, const Slot& as = slot()) {
    PushJournal its_journal = journal(as.slot);
    KnownParts known;
    EXPECT_FALSE(push_part(store_, as, image, its_journal, known, pushing_));
  }
  TagStatus decide(const PushedPart& part, const Slot& as = slot()) {
    KnownParts known;
    DecisionMemory memory;
    auto status = remote::decide(store_, as, part, known, memory, pushing_);
    EXPECT_OK(status);
    return status ? std::move(status).value() : TagStatus{};
  }
  // Pushes it, and has it committed.
  void commit(const std::string& tag, unsigned seed) {
    const BuiltImage image(tag, part_of(seed), next_order());
    const TagStatus status = decide(push(image));
    EXPECT_EQ(status.state, State::committed) << status.reason;
    pass(std::chrono::minutes(1));
  }
  CommittedStep step(const std::string& name) { return find_step(store_, name, {}).value(); }
  void remove(const std::string& name) { ASSERT_OK(remove_step(store_, step(name), "node0", "by hand", {})); }
  void set(const std::string& rule, const std::string& value) {
    ASSERT_OK(change_rules(store_, "node0", [&](RemoteRules& rules) { return set_rule(rules, rule, value); }, {}));
  }
  void pin(const std::vector<std::string>& names) {
    std::set<std::string> pins;
    for (const std::string& name : names) pins.insert(step(name).decision.text());
    ASSERT_OK(change_rules(store_, "node0", [&](RemoteRules& rules) { return rules.pins = pins, success(); }, {}));
  }
  // Of these commits.
  std::vector<std::string> tombstones(const std::vector<std::string>& names) {
    std::vector<std::string> keys;
    for (const std::string& name : names) keys.push_back(gone_key(step(name).decision));
    return keys;
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
  // An object in the part's place says so, and stays.
  void expect_ended(const PushName& push) {
    const auto objects = store_.copy();
    const auto found = objects.find(part_key(push));
    ASSERT_TRUE(found != objects.end());
    EXPECT_LE(found->second.content.size(), kMostEndedBytes);
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
  uint64_t saves_ = 0;
};

TEST_F(CollectorTest, WhatStandsIsLeftAlone) {
  commit("step_1", 1);
  commit("step_2", 2);
  EXPECT_FALSE(last_collection(store_, {}).value());
  ASSERT_OK(found_remote(store_, 1, "node0", {}));
  ASSERT_OK(claim_slot(store_, 0, {0, "0123456789abcdef", "node0", "mount of node0"}, Claim::as_before, {}));
  auto before = store_.keys();
  std::erase_if(before, [](const std::string& key) { return key.starts_with(kPushes); });
  EXPECT_THAT(run_for_days(30).warnings, IsEmpty());
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
  const BuiltImage image("step_1", part, next_order());
  EXPECT_EQ(decide(push(image)).state, State::committed);
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
  pin({"step_2"});
  collecting_.dry_run = true;
  EXPECT_THAT(ran().removed, SizeIs(4));
  EXPECT_THAT(store_.keys(kGone), IsEmpty());
  collecting_.dry_run = false;
  const CollectorReport report = ran();
  ASSERT_THAT(report.removed, SizeIs(4));
  EXPECT_THAT(report.removed[0].why, HasSubstr("keep_every=5, keep_last=2"));
  EXPECT_THAT(store_.keys(kGone), UnorderedElementsAreArray(tombstones({"step_1", "step_3", "step_4", "step_6"})));
  run_for_days(4);
  for (const char* const name : {"step_2", "step_5", "step_7", "step_8"}) expect_whole(name);
}

// A step that was saved again has a name of its own. A pin, a removal and a rule reach the commit that they name.
TEST_F(CollectorTest, APinHoldsTheCommitThatItNames) {
  commit("step_1", 1);
  commit("step_1", 2);
  commit("step_2", 3);
  set("keep_last", "1");
  collecting_.dry_run = true;
  for (const std::string pinned : {"step_1", "step_1~2"}) {
    pin({pinned});
    const CollectorReport report = ran();
    ASSERT_THAT(report.removed, SizeIs(1)) << pinned;
    EXPECT_EQ(report.removed[0].step.name(), pinned == "step_1" ? "step_1~2" : "step_1");
  }
  collecting_.dry_run = false;
  ran();
  EXPECT_EQ(store_.keys(kGone), tombstones({"step_1"}));
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
  const BuiltImage image("step_2", part_of(2), next_order());
  store_.fate = [](const std::string& operation, const std::string& key) {
    const bool is_part = operation == "put" && key.starts_with(kParts);
    return is_part ? io::testing::MemoryStore::Fate::refused : io::testing::MemoryStore::Fate::done;
  };
  push_in_vain(image);
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
  EXPECT_EQ(decide(part).state, State::committed);
  expect_whole("step_2");
}

TEST_F(CollectorTest, ASaveThatStaysUndecidedGetsAVoid) {
  const BuiltImage image("step_1", part_of(1), next_order()), other("step_1", second_part_of(9));
  const PushedPart part = push(image, slot(0, 2));
  EXPECT_EQ(decide(part, slot(0, 2)).missing, std::vector<uint32_t>{1});
  run_for_days(6);
  EXPECT_THAT(store_.keys(kSteps), IsEmpty());
  pass_days(1);
  const CollectorReport report = ran();
  EXPECT_THAT(report.ended, ElementsAre(part.name.push));
  EXPECT_THAT(report.committed, IsEmpty());
  EXPECT_THAT(store_.keys(kSteps), ElementsAre(step_key(part.decision)));
  EXPECT_EQ(store_.copy().at(step_key(part.decision)).content, void_text());
  EXPECT_THAT(store_.keys("step_1."), SizeIs(5)) << "for a day it can be read";
  run_for_days(1);
  EXPECT_THAT(store_.keys("step_1."), IsEmpty());
  expect_ended(part.name.push);
  const auto before = store_.keys();
  EXPECT_EQ(run_for_days(20).deleted.objects, 0U);
  EXPECT_EQ(store_.keys(), before) << "what is decided stays";

  // The other slot comes at last. It joins what slot 0 pushes then.
  EXPECT_NE(push(other, slot(1, 2)).waits, "");
  const PushedPart again = push(image, slot(0, 2));
  EXPECT_NE(again.decision, part.decision);
  EXPECT_EQ(again.decision.order, part.decision.order);
  EXPECT_EQ(decide(again, slot(0, 2)).state, State::waits);
  const PushedPart other_part = push(other, slot(1, 2));
  EXPECT_EQ(other_part.decision, again.decision);
  EXPECT_EQ(decide(other_part, slot(1, 2)).state, State::committed);
  expect_whole("step_1");
}

// All mounts died when their parts were there.
TEST_F(CollectorTest, WhatOnlyLacksItsCommitGetsIt) {
  const BuiltImage image("step_1", part_of(1), next_order()), other("step_1", second_part_of(9));
  const PushedPart part = push(image, slot(0, 2));
  EXPECT_THAT(ran().committed, IsEmpty()) << "slot 1 is missing";
  const PushedPart other_part = push(other, slot(1, 2));
  const auto before = store_.keys();
  collecting_.dry_run = true;
  const CollectorReport dry = ran();
  EXPECT_THAT(dry.committed, ElementsAre(part.decision)) << "it would be";
  EXPECT_THAT(dry.ended, IsEmpty());
  EXPECT_EQ(store_.keys(), before);
  EXPECT_THAT(store_.keys(kSteps), IsEmpty());
  collecting_.dry_run = false;
  const CollectorReport report = ran();
  EXPECT_THAT(report.committed, ElementsAre(part.decision));
  EXPECT_THAT(report.ended, IsEmpty());
  EXPECT_THAT(ran().committed, IsEmpty());
  expect_whole("step_1");
  EXPECT_EQ(decide(part, slot(0, 2)).state, State::committed);
  EXPECT_EQ(decide(other_part, slot(1, 2)).state, State::committed);
  run_for_days(20);
  expect_whole("step_1");
}

// The mount that had put it was never told.
TEST_F(CollectorTest, APartWhoseReplyWasLostIsCommitted) {
  const BuiltImage image("step_1", part_of(1), next_order());
  store_.fate = [](const std::string& operation, const std::string& key) {
    const bool is_part = operation == "put" && key.starts_with(kParts);
    return is_part ? io::testing::MemoryStore::Fate::reply_lost : io::testing::MemoryStore::Fate::done;
  };
  push_in_vain(image);
  store_.fate = [](auto&, auto&) { return io::testing::MemoryStore::Fate::done; };
  EXPECT_THAT(ran().committed, SizeIs(1));
  expect_whole("step_1");
  const PushedPart part = push(image);
  EXPECT_EQ(part.sent + part.copied, 0U);
  EXPECT_EQ(decide(part).state, State::committed);
  EXPECT_THAT(store_.keys(kSteps), SizeIs(1));
}

TEST_F(CollectorTest, PartsThatCannotBeOneStepGetAVoid) {
  const BuiltImage image("step_1", part_of(1).file("both.bin", "x"), next_order());
  const BuiltImage other("step_1", second_part_of(9).file("both.bin", "y"));
  const PushedPart part = push(image, slot(0, 2)), other_part = push(other, slot(1, 2));
  EXPECT_THAT(run_for_days(6).committed, IsEmpty());
  EXPECT_EQ(decide(part, slot(0, 2)).state, State::refused);
  pass_days(2);
  EXPECT_THAT(ran().ended, ElementsAre(part.name.push)) << "a void is told by the push of slot 0";
  EXPECT_EQ(decide(part, slot(0, 2)).state, State::ended);
  EXPECT_EQ(decide(other_part, slot(1, 2)).state, State::ended);
  run_for_days(2);
  EXPECT_THAT(store_.keys("step_1."), IsEmpty());
  expect_ended(part.name.push);
  expect_ended(other_part.name.push);
}

// The week begins anew with each part.
TEST_F(CollectorTest, ASaveOfWhichSomethingCameIsNotEnded) {
  const BuiltImage image("step_1", part_of(1), next_order()), other("step_1", second_part_of(9));
  const PushedPart part = push(image, slot(0, 3));
  run_for_days(6);
  const PushedPart other_part = push(other, slot(1, 3));
  EXPECT_EQ(other_part.decision, part.decision);
  run_for_days(6);
  EXPECT_THAT(store_.keys(kSteps), IsEmpty());
  EXPECT_EQ(decide(part, slot(0, 3)).missing, std::vector<uint32_t>{2});
  run_for_days(2);
  EXPECT_THAT(store_.keys(kSteps), ElementsAre(step_key(part.decision)));
}

// A slot changed its files before the commit.
TEST_F(CollectorTest, APartThatItsCommitDoesNotNameGoes) {
  const BuiltImage image("step_1", part_of(1), next_order());
  const BuiltImage before("step_1", second_part_of(9)), after("step_1", second_part_of(10));
  const PushedPart part = push(image, slot(0, 2)), old = push(before, slot(1, 2)), newer = push(after, slot(1, 2));
  EXPECT_EQ(old.decision, newer.decision);
  EXPECT_EQ(decide(part, slot(0, 2)).state, State::committed);
  EXPECT_EQ(ran().waiting.objects, 3U) << "its file, the part, and what says that it goes on";
  const auto objects = store_.copy();
  const std::string file = old.name.push.folder() + "slot-1/other.bin";
  ASSERT_TRUE(objects.contains(file));
  run_for_days(1);
  EXPECT_THAT(store_.keys(old.name.push.folder()), IsEmpty());
  EXPECT_THAT(store_.keys(push_key(old.name.push)), IsEmpty());
  expect_ended(old.name.push);
  expect_whole("step_1");

  // Requests that were on their way for long arrive.
  for (const std::string& key : {file, part_key(old.name.push)}) {
    ASSERT_OK(store_.put(key, io::content_of(std::string_view(objects.at(key).content)), io::PutMode::replace, {}));
    run_for_days(2);
    EXPECT_THAT(store_.keys(old.name.push.folder()), IsEmpty());
    expect_ended(old.name.push);
  }
  expect_whole("step_1");
}

// A slot was stopped. When it looks again, the commit has been removed, and all parts are deleted.
TEST_F(CollectorTest, WhoLooksWhenTheCommitIsGoneIsTold) {
  const BuiltImage image("step_1", part_of(1), next_order()), other("step_1", second_part_of(9));
  const PushedPart part = push(image, slot(0, 2)), other_part = push(other, slot(1, 2));
  EXPECT_EQ(decide(other_part, slot(1, 2)).state, State::committed);
  remove("step_1");
  run_for_days(4);
  ASSERT_THAT(store_.keys(kParts), IsEmpty());
  const TagStatus status = decide(part, slot(0, 2));
  EXPECT_EQ(status.state, State::committed) << status.reason;
  EXPECT_TRUE(status.commit->gone);

  // The other slot changes it: then this one's part is needed again, and is a new one.
  const BuiltImage changed("step_1", second_part_of(10));
  EXPECT_NE(push(changed, slot(1, 2)).waits, "");
  const PushedPart again = push(image, slot(0, 2)), joined = push(changed, slot(1, 2));
  EXPECT_NE(again.name.push, part.name.push);
  EXPECT_EQ(joined.decision, again.decision);
  EXPECT_EQ(decide(joined, slot(1, 2)).state, State::committed);
  expect_whole("step_1~2");
}

// Mounts that were stopped all the while still hold their parts' names. Neither waits for the others.
TEST_F(CollectorTest, WhoStillHoldsAPartOfAVoidIsTold) {
  const BuiltImage image("step_1", part_of(1), next_order()), other("step_1", second_part_of(9));
  const PushedPart part = push(image, slot(0, 3)), other_part = push(other, slot(1, 3));
  run_for_days(8);
  EXPECT_EQ(decide(part, slot(0, 3)).state, State::ended);
  EXPECT_EQ(decide(other_part, slot(1, 3)).state, State::ended);
  run_for_days(8);
  EXPECT_EQ(decide(part, slot(0, 3)).state, State::ended) << "also when the parts are gone";
  EXPECT_EQ(decide(other_part, slot(1, 3)).state, State::ended);
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
  const BuiltImage image("step_1", part_of(1), next_order()), other("step_1", second_part_of(9));
  store_.fate = [](const std::string& operation, const std::string& key) {
    const bool is_part = operation == "put" && key.starts_with(kParts);
    return is_part ? io::testing::MemoryStore::Fate::reply_lost : io::testing::MemoryStore::Fate::done;
  };
  push_in_vain(image, slot(0, 2));
  store_.fate = [](auto&, auto&) { return io::testing::MemoryStore::Fate::done; };
  ASSERT_TRUE(journal().push());
  run_for_days(12);
  EXPECT_THAT(store_.keys("step_1."), IsEmpty());
  const PushedPart part = push(image, slot(0, 2));
  EXPECT_EQ(part.copied, 0U);
  EXPECT_EQ(part.sent, 5 * kBytes);
  push(other, slot(1, 2));
  EXPECT_EQ(decide(part, slot(0, 2)).state, State::committed);
  expect_whole("step_1");
}

TEST_F(CollectorTest, NamesGoOnWhenOldPartsAreGone) {
  commit("step_1", 1);
  commit("step_2", 2);
  remove("step_1");
  run_for_days(4);
  ASSERT_THAT(store_.keys(std::string(kParts) + "step_1/"), IsEmpty());
  commit("step_1", 7);
  expect_whole("step_1~2");
  EXPECT_TRUE(step("step_1").gone);
}

TEST_F(CollectorTest, ARemovedStepIsKnownByWhatWasSaved) {
  commit("step_1", 1);
  commit("step_2", 2);
  const Order order = step("step_1").decision.order;
  const auto saved = [](const BuiltPart& part) { return saved_of(BuiltImage("step_1", part)).value(); };
  const auto is_known = [&](const BuiltPart& part, const Order& of_save) {
    const auto removed = find_removed(store_, "step_1", 0, saved(part), of_save, {});
    EXPECT_OK(removed);
    return removed && removed.value();
  };
  EXPECT_FALSE(is_known(part_of(1), order));
  remove("step_1");
  const auto removed = find_removed(store_, "step_1", 0, saved(part_of(1)), order, {});
  ASSERT_OK(removed);
  ASSERT_TRUE(removed.value());
  EXPECT_EQ(removed.value()->why, "by hand");
  EXPECT_EQ(removed.value()->name, step("step_1").decision);
  EXPECT_TRUE(is_known(part_of(1).file("eval_results.json", "{}"), order)) << "a note has come since";
  EXPECT_FALSE(is_known(part_of(3), order));
  EXPECT_FALSE(is_known(part_of(1), {1, order.time + 100})) << "saved again, with the same bytes";
  run_for_days(4);
  EXPECT_TRUE(is_known(part_of(1), order)) << "also when its part is gone";
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
  const std::string key = step_key(step("step_1").decision);
  auto without = store_.copy();
  without.erase(key);
  store_.restore(without);
  const auto report = run_once();
  ASSERT_FALSE(report);
  EXPECT_ERRNO(EIO, report);
  EXPECT_THAT(report.error().message(), HasSubstr(key));
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

TEST_F(CollectorTest, OfADamagedCommitNothingGoes) {
  commit("step_1", 1);
  commit("step_2", 2);
  const auto files = store_.keys("step_1.");
  const std::string key = step_key(step("step_1").decision);
  auto objects = store_.copy();
  objects.at(key).content.replace(3, 5, "XXXXX");
  store_.restore(objects);
  EXPECT_THAT(ran().warnings, ElementsAre(AllOf(HasSubstr(key), HasSubstr("nothing of it is deleted"))));
  run_for_days(20);
  EXPECT_EQ(store_.keys("step_1."), files);
  EXPECT_THAT(store_.keys(kParts + std::string("step_1/")), SizeIs(1));
  expect_whole("step_2");
}

TEST_F(CollectorTest, UploadsOfDeadProcessesEnd) {
  const BuiltImage image("step_1", BuiltPart().file("large", bytes_for(3 * kChunkBytes, 1)));
  store_.fate = [](const std::string& operation, auto&) {
    return operation == "complete" ? io::testing::MemoryStore::Fate::refused : io::testing::MemoryStore::Fate::done;
  };
  ASSERT_OK(found_remote(store_, 1, "node0", {}));
  push_in_vain(image);
  EXPECT_EQ(run_for_days(6).uploads, 0U);
  EXPECT_EQ(store_.uploads(), 1U);
  EXPECT_EQ(run_for_days(1).uploads, 1U);
  EXPECT_EQ(store_.uploads(), 0U);
}

}  // namespace
}  // namespace ckptfs::meta::remote::testing

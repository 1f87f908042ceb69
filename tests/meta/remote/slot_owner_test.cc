#include "meta/remote/slot_owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "meta/remote/commit.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/layout.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

using io::testing::MemoryStore;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Before it makes an object it does what a test says. It answers as one that tries again (io/objects/retrying_store.h).
class RacedStore : public MemoryStore {
 public:
  Result<> put(const std::string& key, const io::ObjectContent& content, io::PutMode mode,
               const io::RequestLimits& limits) override {
    if (const auto first = std::exchange(before_next, nullptr)) first();
    auto done = MemoryStore::put(key, content, mode, limits);
    if (done && std::exchange(loses_reply, false)) return MemoryStore::put(key, content, mode, limits);
    return done;
  }
  std::function<void()> before_next;
  bool loses_reply = false;
};

class SlotOwnerTest : public ::testing::Test {
 protected:
  static SlotOwner mount(int number) {
    const std::string text = std::to_string(number);
    return {0, std::string(16, static_cast<char>('0' + number)), "node" + text, "store@node" + text + ":/series"};
  }
  Result<uint32_t> claim(const SlotOwner& own, Claim how = Claim::as_before, uint32_t slot = 0) {
    return claim_slot(store_, slot, own, how, {});
  }
  // The mount, as the owner in this term.
  static SlotOwner in_term(uint32_t term, SlotOwner own) {
    own.term = term;
    return own;
  }
  void expect_owner(const SlotOwner& own, uint32_t term, uint32_t slot = 0) {
    const auto there = find_owner(store_, slot, {});
    ASSERT_OK(there);
    ASSERT_TRUE(there.value());
    EXPECT_EQ(there.value()->term, term);
    EXPECT_EQ(there.value()->claim, own.claim);
    EXPECT_EQ(there.value()->host, own.host);
    EXPECT_EQ(there.value()->mount, own.mount);
  }
  void put(const std::string& key, const std::string& text) {
    ASSERT_OK(store_.put(key, io::content_of(std::string_view(text)), io::PutMode::make, {}));
  }

  RacedStore store_;
};

TEST_F(SlotOwnerTest, TheFirstOneHasIt) {
  EXPECT_FALSE(find_owner(store_, 0, {}).value());
  EXPECT_ERRNO(ENOENT, check_owner(store_, 0, in_term(1, mount(1)), {})) << "somebody has emptied the remote";
  EXPECT_EQ(claim(mount(1)).value(), 1U);
  expect_owner(mount(1), 1);
  EXPECT_EQ(claim(mount(1)).value(), 1U) << "it says so again";
  EXPECT_THAT(store_.keys(), ElementsAre(owner_key(0, 1)));
  EXPECT_OK(check_owner(store_, 0, in_term(1, mount(1)), {}));
}

TEST_F(SlotOwnerTest, EachSlotHasItsOwn) {
  EXPECT_EQ(claim(mount(1), Claim::as_before, 1).value(), 1U);
  EXPECT_FALSE(find_owner(store_, 0, {}).value());
  EXPECT_EQ(claim(mount(2), Claim::as_before, 10).value(), 1U) << "its key begins as that of slot 1";
  EXPECT_EQ(claim(mount(3)).value(), 1U);
  expect_owner(mount(3), 1, 0);
  expect_owner(mount(1), 1, 1);
  expect_owner(mount(2), 1, 10);
}

TEST_F(SlotOwnerTest, ANewStoreWhereTheOldOneWasGoesOn) {
  const SlotOwner old{0, std::string(16, '1'), "node1", "a1/5@node1:/mnt/store"};
  EXPECT_EQ(claim(old).value(), 1U);
  SlotOwner fresh{0, std::string(16, '2'), "node1", "b2/5@node1:/mnt/store"};
  EXPECT_EQ(claim(fresh).value(), 2U);
  for (const char* const mount : {"b2/5@node1:/mnt/other", "b2/5@node2:/mnt/store", "b2/5"}) {
    fresh.claim = std::string(16, '3');
    fresh.mount = mount;
    EXPECT_ERRNO(EEXIST, claim(fresh)) << mount;
  }
}

TEST_F(SlotOwnerTest, ASecondMountIsRefusedByTheNamesOfBoth) {
  ASSERT_OK(claim(mount(1), Claim::as_before, 3));
  for (const Claim how : {Claim::as_before, Claim::next_term}) {
    const auto refused = claim(mount(2), how, 3);
    EXPECT_ERRNO(EEXIST, refused);
    EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("slot 3 of memory:"), HasSubstr("mount store@node1:/series"),
                                                 HasSubstr("store@node2:/series"), HasSubstr("--take-over")));
  }
  expect_owner(mount(1), 1, 3);
  EXPECT_THAT(store_.keys(), SizeIs(1));
}

TEST_F(SlotOwnerTest, ItCanBeTakenOver) {
  ASSERT_OK(claim(mount(1)));
  EXPECT_EQ(claim(mount(2), Claim::take_over).value(), 2U);
  expect_owner(mount(2), 2);
  EXPECT_OK(check_owner(store_, 0, in_term(2, mount(2)), {}));
  const auto refused = check_owner(store_, 0, in_term(1, mount(1)), {});
  EXPECT_ERRNO(EEXIST, refused);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("mount store@node2:/series"), HasSubstr("store@node1:/series")));
  EXPECT_ERRNO(EEXIST, claim(mount(1)));
  EXPECT_EQ(claim(mount(2), Claim::take_over).value(), 2U) << "it is its own";
  EXPECT_EQ(claim(mount(1), Claim::take_over).value(), 3U);
  EXPECT_ERRNO(EEXIST, check_owner(store_, 0, in_term(2, mount(2)), {}));
  EXPECT_THAT(store_.keys(), SizeIs(3)) << "who had it before stays known";
}

TEST_F(SlotOwnerTest, WhatNobodyHasCanBeTakenOver) { EXPECT_EQ(claim(mount(1), Claim::take_over).value(), 1U); }

// Its host has got another name, or its store was copied to another one: then the one that is left behind is told.
TEST_F(SlotOwnerTest, TheSameClaimFromAnotherHostTakesTheNextTerm) {
  ASSERT_OK(claim(mount(1)));
  SlotOwner moved = mount(1);
  moved.host = "node7";
  moved.mount = "store@node7:/series";
  EXPECT_EQ(claim(moved).value(), 2U);
  expect_owner(moved, 2);
  const auto refused = check_owner(store_, 0, in_term(1, mount(1)), {});
  EXPECT_ERRNO(EEXIST, refused);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("@node7:"), HasSubstr("@node1:")));
  EXPECT_OK(check_owner(store_, 0, in_term(2, moved), {}));
  moved.mount = "elsewhere@node7:/series7";
  EXPECT_EQ(claim(moved).value(), 3U);
}

// The series' remote was removed, and added again.
TEST_F(SlotOwnerTest, TheSameMountWithAnotherClaimTakesTheNextTerm) {
  ASSERT_OK(claim(mount(1)));
  SlotOwner again = mount(1);
  again.claim = mount(5).claim;
  EXPECT_EQ(claim(again).value(), 2U);
  expect_owner(again, 2);
  EXPECT_ERRNO(EEXIST, check_owner(store_, 0, in_term(1, mount(1)), {}));
  again.host = "node7";
  EXPECT_EQ(claim(again).value(), 3U);
}

// Its store's clock went back: what it saves now is newer than what it saved.
TEST_F(SlotOwnerTest, TheOwnerMayTakeTheNextTerm) {
  EXPECT_EQ(claim(mount(1), Claim::next_term).value(), 1U);
  EXPECT_EQ(claim(mount(1), Claim::next_term).value(), 2U);
  EXPECT_EQ(claim(mount(1)).value(), 2U);
  expect_owner(mount(1), 2);
  EXPECT_OK(check_owner(store_, 0, in_term(1, mount(1)), {})) << "it still is its own";
}

TEST_F(SlotOwnerTest, TheHighestTermCounts) {
  for (uint32_t term = 1; term <= 12; ++term) EXPECT_EQ(claim(mount(1), Claim::next_term).value(), term);
  expect_owner(mount(1), 12);
}

TEST_F(SlotOwnerTest, ALostReplyTakesOneTerm) {
  for (const Claim how : {Claim::as_before, Claim::next_term}) {
    const uint32_t term = how == Claim::as_before ? 1 : 2;
    store_.loses_reply = true;
    EXPECT_EQ(claim(mount(1), how).value(), term);
    EXPECT_FALSE(store_.loses_reply);
    EXPECT_THAT(store_.keys(), SizeIs(term));
  }
}

TEST_F(SlotOwnerTest, OfTwoAtTheSameMomentOneHasIt) {
  store_.before_next = [this] { ASSERT_OK(claim(mount(2))); };
  EXPECT_ERRNO(EEXIST, claim(mount(1)));
  expect_owner(mount(2), 1);
  store_.before_next = [this] { ASSERT_OK(claim(mount(3), Claim::take_over)); };
  EXPECT_EQ(claim(mount(1), Claim::take_over).value(), 3U) << "it was said later";
  expect_owner(mount(1), 3);
}

TEST_F(SlotOwnerTest, OtherObjectsThereAreNobodysClaims) {
  put(".ckptfs/slots/0/x", "hello");
  put(".ckptfs/slots/0/01", "hello");
  put(".ckptfs/slots/0/1/2", "hello");
  EXPECT_FALSE(find_owner(store_, 0, {}).value());
  EXPECT_EQ(claim(mount(1)).value(), 1U);
}

TEST_F(SlotOwnerTest, ADamagedOneIsNamed) {
  const auto text = [](const std::string& host) {
    return checked_line({{"ckptfs", "slot"}, {"version", 2}, {"claim", "x"}, {"host", host}, {"mount", "m"}});
  };
  std::string edited = text("old");
  edited.replace(edited.find("old"), 3, "new");
  // What lies there, and what is said of it.
  const std::vector<std::pair<std::string, std::string>> damaged{
      {checked_line({{"ckptfs", "slot"}, {"version", 2}, {"claim", "x"}, {"host", 5}, {"mount", "m"}}),
       "it has no text \"host\""},
      {checked_line({{"ckptfs", "slot"}, {"version", 2}, {"claim", "x"}, {"host", "h"}}), "it has no text \"mount\""},
      {checked_line({{"ckptfs", "slot"}, {"version", 2}, {"host", "h"}, {"mount", "m"}}), "it has no text \"claim\""},
      {void_text(), "it is \"void\", and should be \"slot\""},
      {edited, "it was damaged"},
      {"", ""}};
  for (uint32_t slot = 0; slot < damaged.size(); ++slot) {
    put(owner_key(slot, 1), damaged[slot].first);
    const auto found = find_owner(store_, slot, {});
    EXPECT_ERRNO(EBADMSG, found);
    EXPECT_THAT(found.error().message(), AllOf(HasSubstr(owner_key(slot, 1)), HasSubstr(damaged[slot].second)));
    EXPECT_ERRNO(EBADMSG, claim(mount(1), Claim::take_over, slot)) << "nobody knows whose it is";
    EXPECT_ERRNO(EBADMSG, check_owner(store_, slot, in_term(1, mount(1)), {}));
  }
  constexpr uint32_t kRight = 10, kNewer = 11;
  put(owner_key(kRight, 1), text("node9"));
  EXPECT_EQ(find_owner(store_, kRight, {}).value()->host, "node9") << "what is not damaged";
  put(owner_key(kNewer, 1), R"({"ckptfs":"slot","version":3,"claim":"x","host":"h","mount":"m"})");
  EXPECT_ERRNO(EPROTO, claim(mount(1), Claim::as_before, kNewer));
}

TEST_F(SlotOwnerTest, AStoreThatCannotBeAskedIsAnError) {
  for (const char* const operation : {"list", "put"}) {
    store_.fate = [operation](const std::string& asked, const std::string&) {
      return asked == operation ? MemoryStore::Fate::forbidden : MemoryStore::Fate::done;
    };
    EXPECT_ERRNO(EACCES, claim(mount(1)));
  }
  EXPECT_THAT(store_.keys(), IsEmpty());
}

}  // namespace
}  // namespace ckptfs::meta::remote

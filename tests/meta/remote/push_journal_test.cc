#include "meta/remote/push_journal.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

class PushJournalTest : public ::testing::Test {
 protected:
  PushJournal open(const std::string& remote = "remote") { return PushJournal::open(file_, remote).value(); }
  static JournalledChunk chunk(unsigned number) {
    return {io::Digest{std::byte(number), std::byte(number >> 8)}, number, 10};
  }

  io::testing::ScratchFolder scratch_;
  const std::string file_ = scratch_.path() + "/journal";
  const PushName push_{"step_1", 0, "0123456789abcdef"}, later_{"step_1", 0, "fedcba9876543210"};
};

TEST_F(PushJournalTest, FindsWhatHasArrived) {
  {
    PushJournal journal = open();
    ASSERT_OK(journal.add(push_, 0, std::vector{chunk(1), chunk(2)}));
    EXPECT_TRUE(journal.find(chunk(2).digest).value().has_value());
    ASSERT_OK(journal.add(later_, 7, std::vector{chunk(3)}));
  }
  const PushJournal journal = open();
  const auto place = journal.find(chunk(3).digest).value();
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->push, later_);
  EXPECT_EQ(place->pack, 7U);
  EXPECT_EQ(place->offset, 3U);
  EXPECT_EQ(place->length, 10U);
  EXPECT_FALSE(journal.find(chunk(4).digest).value().has_value());
  EXPECT_EQ(journal.pushes(), (std::vector{push_, later_}));
}

TEST_F(PushJournalTest, CutsOffWhatACrashLeft) {
  ASSERT_OK(open().add(push_, 0, std::vector{chunk(1)}));
  const auto whole = std::filesystem::file_size(file_);
  ASSERT_OK(open().add(push_, 1, std::vector{chunk(2)}));
  for (auto size = std::filesystem::file_size(file_) - 1; size > whole; --size) {
    std::filesystem::resize_file(file_, size);
    PushJournal journal = open();
    EXPECT_TRUE(journal.find(chunk(1).digest).value().has_value());
    EXPECT_FALSE(journal.find(chunk(2).digest).value().has_value());
    EXPECT_EQ(std::filesystem::file_size(file_), whole);
    ASSERT_OK(journal.add(push_, 1, std::vector{chunk(2)}));
  }
}

TEST_F(PushJournalTest, ForgetsAnotherRemoteAndWhatIsCleared) {
  ASSERT_OK(open().add(push_, 0, std::vector{chunk(1)}));
  EXPECT_TRUE(open("another").pushes().empty());
  PushJournal journal = open("another");
  ASSERT_OK(journal.add(push_, 0, std::vector{chunk(1)}));
  ASSERT_OK(journal.clear());
  EXPECT_FALSE(journal.find(chunk(1).digest).value().has_value());
  ASSERT_OK(journal.add(push_, 1, std::vector{chunk(2)}));
  EXPECT_EQ(open("another").find(chunk(2).digest).value()->pack, 1U);
}

}  // namespace
}  // namespace ckptfs::meta::remote

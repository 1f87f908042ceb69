#include "meta/remote/push_journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

class PushJournalTest : public ::testing::Test {
 protected:
  PushJournal open(const std::string& remote = "remote") { return PushJournal::open(file_, remote).value(); }
  PushJournal begun() {
    PushJournal journal = open();
    EXPECT_OK(journal.begin(push_, content_));
    return journal;
  }

  io::testing::ScratchFolder scratch_;
  const std::string file_ = scratch_.path() + "/journal";
  const PushName push_{"step_1", 0, "0123456789abcdef"}, later_{"step_1", 0, "fedcba9876543210"};
  const io::Digest content_{std::byte{1}}, one_{std::byte{2}}, two_{std::byte{3}};
};

TEST_F(PushJournalTest, KnowsWhatHasArrived) {
  {
    PushJournal journal = begun();
    ASSERT_OK(journal.add_file("a/\xc3\xbc \"b\"\n", one_));
    ASSERT_OK(journal.add_upload("large", "id/+=", 64 << 20));
    ASSERT_OK(journal.add_piece("large", 2, "\"tag 2\""));
    ASSERT_OK(journal.add_piece("large", 1, "\"tag 1\""));
  }
  const PushJournal journal = open();
  EXPECT_EQ(journal.push(), push_);
  EXPECT_EQ(journal.content(), content_);
  EXPECT_TRUE(journal.has_file("a/\xc3\xbc \"b\"\n"));
  EXPECT_FALSE(journal.has_file("large"));
  const JournalledUpload upload = journal.upload("large");
  EXPECT_EQ(upload.id, "id/+=");
  EXPECT_EQ(upload.piece_bytes, 64U << 20);
  EXPECT_EQ(upload.pieces, (std::map<uint32_t, std::string>{{1, "\"tag 1\""}, {2, "\"tag 2\""}}));
  EXPECT_EQ(journal.upload("other").id, "");
}

TEST_F(PushJournalTest, AnUploadThatIsBegunAnewHasNoPieces) {
  PushJournal journal = begun();
  ASSERT_OK(journal.add_upload("large", "first", 10));
  ASSERT_OK(journal.add_piece("large", 1, "tag"));
  ASSERT_OK(journal.add_upload("large", "", 0));
  EXPECT_TRUE(open().upload("large").id.empty());
  ASSERT_OK(journal.add_upload("large", "second", 10));
  EXPECT_TRUE(open().upload("large").pieces.empty());
  EXPECT_EQ(open().upload("large").id, "second");
}

TEST_F(PushJournalTest, OfAnEarlierPushItKnowsTheFiles) {
  {
    PushJournal journal = begun();
    ASSERT_OK(journal.add_file("a", one_));
    ASSERT_OK(journal.add_file("b", one_));
    ASSERT_OK(journal.add_upload("large", "id", 10));
    ASSERT_OK(journal.begin(later_, two_));
  }
  PushJournal journal = open();
  EXPECT_EQ(journal.push(), later_);
  EXPECT_FALSE(journal.has_file("a"));
  EXPECT_TRUE(journal.upload("large").id.empty());
  EXPECT_EQ(journal.file_before("a", one_), push_);
  EXPECT_FALSE(journal.file_before("a", two_));
  EXPECT_FALSE(journal.file_before("c", one_));
  const PushName last{"step_1", 0, "00000000000000ff"};
  ASSERT_OK(journal.add_file("a", one_));
  ASSERT_OK(journal.begin(last, content_));
  EXPECT_EQ(open().file_before("a", one_), later_);
  EXPECT_EQ(open().file_before("b", one_), push_);
}

TEST_F(PushJournalTest, CutsOffWhatACrashLeft) {
  ASSERT_OK(begun().add_file("a", one_));
  const auto whole = std::filesystem::file_size(file_);
  ASSERT_OK(open().add_file("b", two_));
  for (auto size = std::filesystem::file_size(file_) - 1; size > whole; --size) {
    std::filesystem::resize_file(file_, size);
    PushJournal journal = open();
    EXPECT_TRUE(journal.has_file("a"));
    EXPECT_FALSE(journal.has_file("b"));
    EXPECT_EQ(std::filesystem::file_size(file_), whole);
    ASSERT_OK(journal.add_file("b", two_));
  }
  std::fstream(file_, std::ios::in | std::ios::out).seekp(static_cast<std::streamoff>(whole)) << std::string(3, '\0');
  EXPECT_FALSE(open().has_file("b")) << "a hole of lines that were written out of order";
}

TEST_F(PushJournalTest, ForgetsAnotherRemoteAndWhatIsCleared) {
  ASSERT_OK(begun().add_file("a", one_));
  EXPECT_FALSE(open("another").push());
  EXPECT_FALSE(open().push());
  PushJournal journal = begun();
  ASSERT_OK(journal.add_file("a", one_));
  ASSERT_OK(journal.clear());
  EXPECT_FALSE(journal.push());
  EXPECT_FALSE(journal.has_file("a"));
  EXPECT_FALSE(open().push());
}

// That of the first format, or of a disk that broke.
TEST_F(PushJournalTest, WhatIsNoneIsForgotten) {
  for (const std::string text : {"ckptfs push journal 1 remote\n\1\2\3", "\n", "{}\n", "{\"journal\":3}\n"}) {
    std::ofstream(file_, std::ios::trunc) << text;
    EXPECT_FALSE(open().push());
    EXPECT_EQ(std::filesystem::file_size(file_), 0U);
  }
}

}  // namespace
}  // namespace ckptfs::meta::remote

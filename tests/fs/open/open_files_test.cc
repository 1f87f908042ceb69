// The node table without a kernel: what is shared, closed and reaped when, whatever the order of messages.
#include "fs/open/open_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <barrier>
#include <set>
#include <thread>

namespace ckptfs::fs {
namespace {

class OpenFilesTest : public ::testing::Test {
 protected:
  OpenFileTable::Environment environment() {
    OpenFileTable::Environment environment;
    environment.open_blob = [](InodeNumber) { return io::open_at(AT_FDCWD, "/dev/null", O_RDONLY); };
    environment.open_backing = [this](int) -> Result<int> {
      if (rendezvous_ != nullptr) rendezvous_->arrive_and_wait();
      if (fail_backing_) return Error(EMFILE);
      const io::MutexLock lock(mutex_);
      ids_.insert(next_id_);
      return next_id_++;
    };
    environment.close_backing = [this](int id) {
      const io::MutexLock lock(mutex_);
      EXPECT_EQ(ids_.erase(id), 1u) << "closed twice: " << id;
    };
    environment.reap = [this](InodeNumber inode) { reaped_.push_back(inode); };
    environment.about_to_change = [this](InodeNumber inode) { changing_.push_back(inode); };
    return environment;
  }

  int backing_id(const std::shared_ptr<OpenFile>& file) {
    const auto backing = table_.backing(*file);
    EXPECT_TRUE(backing);
    return backing ? backing.value().backing_id : -1;
  }

  io::Mutex mutex_;
  std::set<int> ids_;  // open backing ids
  int next_id_ = 1;
  bool fail_backing_ = false;
  std::barrier<>* rendezvous_ = nullptr;
  std::vector<InodeNumber> reaped_;
  std::vector<InodeNumber> changing_;
  OpenFileTable table_{environment()};
};

using Reaped = std::vector<InodeNumber>;

TEST_F(OpenFilesTest, AllOpensShareOneBackingIdUntilTheLastClose) {
  const auto first = table_.begin(7, false);
  const int id = backing_id(first.file);
  EXPECT_GT(id, 0);
  const auto second = table_.begin(7, true);
  EXPECT_TRUE(second.first_writer);
  EXPECT_EQ(backing_id(second.file), id);
  EXPECT_FALSE(table_.begin(7, true).first_writer);

  EXPECT_FALSE(table_.end(first.file, false));
  EXPECT_FALSE(table_.end(second.file, true));
  EXPECT_TRUE(table_.open_for_writing(7));
  EXPECT_EQ(ids_.size(), 1u);
  EXPECT_TRUE(table_.end(second.file, true)) << "the last writer";
  EXPECT_TRUE(ids_.empty());
  EXPECT_FALSE(table_.open_at_all(7));

  const auto later = table_.begin(7, false);
  EXPECT_NE(backing_id(later.file), id);
  table_.end(later.file, false);
}

TEST_F(OpenFilesTest, EachBeginAndEndOfWritingIsAChangeAlsoOfWhatIsClosed) {
  const uint64_t before = table_.writers_of(7).changed;
  table_.end(table_.begin(7, false).file, false);
  EXPECT_EQ(table_.writers_of(7).changed, before) << "by a reader";
  const auto writer = table_.begin(7, true).file;
  const uint64_t begun = table_.writers_of(7).changed;
  EXPECT_NE(begun, before);
  EXPECT_TRUE(table_.writers_of(7).any);
  table_.end(writer, true);
  const uint64_t ended = table_.writers_of(7).changed;
  EXPECT_NE(ended, begun);
  EXPECT_FALSE(table_.writers_of(7).any);
  table_.changes(7);
  EXPECT_NE(table_.writers_of(7).changed, ended);
  const uint64_t last = table_.writers_of(7).changed;
  for (InodeNumber other = 100; other < 70000; ++other) table_.changes(other);
  EXPECT_NE(table_.writers_of(7).changed, last) << "what is forgotten counts as changed";
  EXPECT_NE(table_.writers_of(7).changed, before);
}

TEST_F(OpenFilesTest, OnlyWhatIsStillOpenForWritingIsClosing) {
  const auto first = table_.begin(7, true).file;
  const auto reader = table_.begin(7, false).file;
  EXPECT_FALSE(table_.writers_of(7).closing);
  table_.closing(*first);
  EXPECT_TRUE(table_.writers_of(7).closing);
  table_.end(first, true);
  EXPECT_FALSE(table_.writers_of(7).closing);
  const auto second = table_.begin(7, true).file;
  EXPECT_FALSE(table_.writers_of(7).closing) << "of a writer that came later";
  table_.end(second, true);
  table_.end(reader, false);
}

TEST_F(OpenFilesTest, TwoFirstOpensAgreeOnOneBackingId) {
  std::barrier both(2);
  rendezvous_ = &both;
  std::array<int, 2> ids{};
  std::array<std::shared_ptr<OpenFile>, 2> files;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      files[i] = table_.begin(3, false).file;
      ids[i] = backing_id(files[i]);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids_, std::set<int>{ids[0]}) << "the other was closed";
  for (const auto& file : files) table_.end(file, false);
  EXPECT_TRUE(ids_.empty());
}

TEST_F(OpenFilesTest, AFileWithoutBackingIdStaysDirectForEveryOpener) {
  fail_backing_ = true;
  const auto first = table_.begin(5, false);
  EXPECT_EQ(backing_id(first.file), 0);
  fail_backing_ = false;
  const auto second = table_.begin(5, true);
  EXPECT_EQ(backing_id(second.file), 0);
  table_.end(first.file, false);
  table_.end(second.file, true);
  const auto later = table_.begin(5, false);
  EXPECT_GT(backing_id(later.file), 0);
  table_.end(later.file, false);
}

TEST_F(OpenFilesTest, WhatIsAboutToChangeOrToGoIsTold) {
  const auto reader = table_.begin(4, false);
  EXPECT_TRUE(changing_.empty());
  const auto writer = table_.begin(4, true);
  EXPECT_EQ(changing_, std::vector<InodeNumber>{4});
  const auto second = table_.begin(4, true);
  EXPECT_EQ(changing_.size(), 1U) << "the first writer was told of";
  table_.changes(4);
  EXPECT_EQ(changing_.size(), 2U);
  table_.dropped(4);
  EXPECT_EQ(changing_, (std::vector<InodeNumber>{4, 4, 4}));
  table_.end(reader.file, false);
  table_.end(writer.file, true);
  table_.end(second.file, true);
}

TEST_F(OpenFilesTest, ReapsAfterReleaseAndForgetInEitherOrder) {
  for (const bool forget_first : {true, false}) {
    reaped_.clear();
    table_.add_lookup(9, "name");
    table_.add_lookup(9, "name");
    const auto open = table_.begin(9, true);
    table_.dropped(9);
    EXPECT_TRUE(reaped_.empty());
    if (forget_first) {
      table_.forget(9, 2);
      EXPECT_TRUE(reaped_.empty());
      table_.end(open.file, true);
    } else {
      table_.end(open.file, true);
      table_.forget(9, 1);
      EXPECT_TRUE(reaped_.empty());
      table_.forget(9, 1);
    }
    EXPECT_EQ(reaped_, Reaped{9});
    EXPECT_EQ(table_.remembered_count(), 0u);
  }
}

TEST_F(OpenFilesTest, ReapsAtOnceWhatTheKernelDoesNotKnow) {
  table_.dropped(4);
  EXPECT_EQ(reaped_, Reaped{4});
}

// The kernel remembers the inode forever, because it is never told of the removal.
TEST_F(OpenFilesTest, WhatWasTakenOutIsReapedWhenNothingHasItOpen) {
  OpenFileTable table(environment());
  table.add_lookup(1, "a");
  table.add_lookup(2, "b");
  const auto file = table.begin(2, false).file;
  table.taken_out(1);
  table.taken_out(2);
  EXPECT_EQ(reaped_, std::vector<InodeNumber>{1});
  table.end(file, false);
  EXPECT_EQ(reaped_, (std::vector<InodeNumber>{1, 2}));
  table.forget(1, 1);
  EXPECT_EQ(reaped_.size(), 2U);
}

TEST_F(OpenFilesTest, WhatWasUsedIsRememberedForAWhile) {
  OpenFileTable table(environment());
  const auto before = std::chrono::steady_clock::now();
  table.end(table.begin(1, false).file, false);
  const auto open = table.begin(2, true).file;
  EXPECT_EQ(table.used_since(before), (std::unordered_set<InodeNumber>{1, 2}));
  EXPECT_EQ(table.used_since(std::chrono::steady_clock::now()), (std::unordered_set<InodeNumber>{2}));
  table.end(open, true);
}

TEST_F(OpenFilesTest, NeverReapsWhatHasAName) {
  table_.add_lookup(6, "name");
  const auto open = table_.begin(6, false);
  table_.forget(6, 5);  // more lookups than were given; the count stops at 0
  table_.end(open.file, false);
  EXPECT_TRUE(reaped_.empty());
  EXPECT_EQ(table_.remembered_count(), 0u);
}

TEST_F(OpenFilesTest, WorksOnlyOnWhatIsOpenForWriting) {
  const auto reader = table_.begin(1, false);
  const auto writer = table_.begin(2, true);
  backing_id(reader.file);
  backing_id(writer.file);
  std::vector<InodeNumber> worked_on;
  ASSERT_TRUE(table_.with_writers({1, 2, 3}, [&](OpenFile& file, int) -> Result<> {
    worked_on.push_back(file.inode);
    return success();
  }));
  EXPECT_EQ(worked_on, std::vector<InodeNumber>{2});
  EXPECT_EQ(table_.open_for_writing(), Reaped{2});
  table_.end(reader.file, false);
  table_.end(writer.file, true);
  EXPECT_TRUE(ids_.empty());
}

TEST_F(OpenFilesTest, ClearTellsWhatWasLeft) {
  table_.add_lookup(11, "name");
  table_.add_lookup(12, "name");
  table_.dropped(12);
  const auto writer = table_.begin(11, true);
  const auto leftover = table_.clear();
  EXPECT_EQ(leftover.reap, Reaped{12});
  EXPECT_EQ(leftover.writing, Reaped{11});
  EXPECT_EQ(table_.open_count(), 0u);
}

TEST(ErrorSequenceTest, EachHandleSeesAnErrorOnce) {
  ErrorSequence errors;
  std::atomic<uint64_t> first{errors.now()};
  std::atomic<uint64_t> second{errors.now()};
  EXPECT_EQ(errors.check(first), 0);
  errors.record(EIO);
  std::atomic<uint64_t> opened_later{errors.now()};
  EXPECT_EQ(errors.check(first), EIO);
  EXPECT_EQ(errors.check(first), 0);
  errors.record(ENOSPC);
  EXPECT_EQ(errors.check(second), ENOSPC);
  EXPECT_EQ(errors.check(opened_later), ENOSPC);
  EXPECT_EQ(errors.check(first), ENOSPC);
  EXPECT_EQ(errors.check(second), 0);
}

}  // namespace
}  // namespace ckptfs::fs

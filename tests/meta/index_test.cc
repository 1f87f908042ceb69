// The index when it cannot be written: without descriptors, and on a full file system.
#include <sys/resource.h>

#include "io/fault.h"
#include "meta/care/digests.h"
#include "meta/index/store_clock.h"
#include "meta/steps/ledger.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

class IndexTest : public ScratchStore {
 protected:
  void TearDown() override {
    filler_.reset();
    std::filesystem::remove(folder_ + ".filler");
    ScratchStore::TearDown();
  }

  // Fills the file system down to the last blocks.
  void fill() {
    if (!filler_) {
      auto made = io::open_at(AT_FDCWD, folder_ + ".filler", O_RDWR | O_CREAT);
      ASSERT_TRUE(made) << made.error().message();
      filler_ = std::move(made).value();
    }
    for (const off_t piece : {off_t{64} << 20, off_t{1} << 20, off_t{64} << 10, off_t{4096}}) {
      while (::fallocate(filler_.get(), 0, filled_, piece) == 0) filled_ += piece;
    }
  }
  void make_room() {
    ASSERT_EQ(::ftruncate(filler_.get(), 0), 0);
    filled_ = 0;
  }

  // Makes changes until one fails, and calls `meanwhile` now and then. The growing index needs new files for them.
  Result<> change_until_error(const std::function<void()>& meanwhile = [] {}) {
    constexpr int kMost = 3000;
    const InodeNumber file = at("/f");
    for (int i = 0; i < kMost; ++i) {
      if (i % 10 == 0) meanwhile();
      TRY(tree().set_xattr(file, "user.x" + std::to_string(i % 100), std::string(60000, 'x'), 0));
    }
    return success();
  }
  uint64_t ballast() { return store_->index().ballast().bytes(); }
  // Uses up all of the ballast but the part that is kept for removals.
  void use_up_what_any_change_may_use() {
    make_file("/f", "content");
    for (int i = 0; i < 8; ++i) make_file("/large" + std::to_string(i), std::string(6 << 20, 'l'));
    EXPECT_EQ(ballast(), 64 * kMiB);
    const auto changed = change_until_error([this] { fill(); });
    ASSERT_FALSE(changed);
    EXPECT_EQ(changed.error().errno_value(), ENOSPC) << changed.error().message();
    fill();
    EXPECT_EQ(ballast(), 16 * kMiB);
  }
  void expect_that_removals_make_room() {
    for (int i = 0; i < 8; ++i) remove("/large" + std::to_string(i));
    for (int i = 0; i < 1000 && store_->space().raw_free < 32 * kMiB; ++i) ::usleep(10000);
    EXPECT_GE(store_->space().raw_free, 32 * kMiB);
  }

  io::Fd filler_;
  off_t filled_ = 0;
};

#ifdef CKPTFS_FAULT_POINTS
// Who syncs after somebody else's sync has failed has nothing new, and is told of it all the same.
TEST_F(IndexTest, ASyncThatFailedIsDoneAgain) {
  io::set_fault("index.sync", "error:EIO");
  make_file("/f", "content");
  for (int sync = 0; sync < 2; ++sync) EXPECT_FALSE(tree().sync()) << "sync " << sync;
  io::set_fault("index.sync", "");
  EXPECT_TRUE(tree().sync());
}
#endif

TEST_F(IndexTest, GoesOnWhenThereAreDescriptorsAgain) {
  make_file("/f", "content");
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const int lowest = ::dup(STDIN_FILENO);
  ASSERT_GE(lowest, 0);
  ::close(lowest);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(lowest);
  ::setrlimit(RLIMIT_NOFILE, &none);
  const auto changed = change_until_error();
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().errno_value(), EIO) << changed.error().message();
  make_folder("/after");
  ASSERT_TRUE(tree().sync());
  crash();
  open();
  EXPECT_TRUE(tree().resolve("/after"));
  EXPECT_EQ(read("/f"), "content");
  expect_clean_fsck();
}

TEST_F(IndexTest, RecordsRemovalsOnAFullStoreWhenTheBallastIsUsedUp) {
  use_up_what_any_change_may_use();
  expect_that_removals_make_room();
  make_room();
  make_folder("/after");
  for (int i = 0; i < 1000 && ballast() < 64 * kMiB; ++i) ::usleep(10000);
  EXPECT_EQ(ballast(), 64 * kMiB);
  reopen();
  EXPECT_TRUE(tree().resolve("/after"));
  expect_clean_fsck();
}

TEST_F(IndexTest, OpensOnAFullStore) {
  make_file("/f", "content");
  fill();
  crash();
  open();
  EXPECT_EQ(read("/f"), "content");
  fill();
  crash();
  open();
  EXPECT_EQ(read("/f"), "content");
  remove("/f");
}

TEST_F(IndexTest, OpensOnAFullStoreWithTheLastBallast) {
  use_up_what_any_change_may_use();
  crash();
  open();
  EXPECT_EQ(read("/f"), "content");
  expect_that_removals_make_room();
}

TEST_F(IndexTest, OpensOnAFullStoreThoughAFileChangedSinceItsDigests) {
  make_file("/digested", "content");
  const auto taken = take_digests(*store_, at("/digested"), without_pause);
  ASSERT_TRUE(taken) << taken.error().message();
  ASSERT_EQ(taken.value(), Taking::taken);
  use_up_what_any_change_may_use();
  {
    const auto survivor = store_->blobs().open(tree().inode(at("/digested")).value().blob, O_RDWR);
    ASSERT_TRUE(io::write_full(survivor.value().get(), std::as_bytes(std::span("C", 1)), 0));
  }
  crash();
  open();
  EXPECT_TRUE(tree().is_inspected());
  EXPECT_EQ(read("/digested"), "Content");
  expect_that_removals_make_room();
}

TEST_F(IndexTest, WhatComesBeforeARemovalIsRecordedOnAFullStore) {
  make_folder("/steps/global_step1");
  make_file("/steps/global_step1/mp_rank_00_model_states.pt", "content");
  const InodeNumber step = at("/steps/global_step1");
  ASSERT_TRUE(set_pinned(*store_, step, true));
  make_file("/digested", "content");
  ASSERT_TRUE(take_digests(*store_, at("/digested"), without_pause));
  auto clock = StoreClock::load(store_->index());
  ASSERT_TRUE(clock) << clock.error().message();
  use_up_what_any_change_may_use();
  EXPECT_EQ(take_digests(*store_, at("/large0"), without_pause).error().errno_value(), ENOSPC);
  EXPECT_TRUE(set_pinned(*store_, step, false));
  EXPECT_EQ(set_pinned(*store_, step, true).error().errno_value(), ENOSPC);
  EXPECT_TRUE(note_seen(*store_, clock.value(), {{step, SeenStep{}}}));
  EXPECT_TRUE(clock.value().note(store_->index()));
  EXPECT_TRUE(tree().truncate(at("/digested"), 0));
  expect_that_removals_make_room();
}

}  // namespace
}  // namespace ckptfs::meta

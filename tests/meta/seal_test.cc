#include "meta/steps/seal.h"

#include <sys/mman.h>

#include <chrono>
#include <future>

#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using SealTest = ScratchSwapState;

TEST_F(SealTest, SealedStepsAreImmutableAndCanBeRemoved) {
  ASSERT_TRUE(save("s1"));
  make_file("/steps/s1/zero_pp_rank_0_mp_rank_00_model_states.pt", "weights");
  const InodeNumber file = at("/steps/s1/zero_pp_rank_0_mp_rank_00_model_states.pt");
  open_files_.writers.insert(file);
  EXPECT_EQ(seal(*store_, at("/steps/s1")).error().errno_value(), EBUSY);
  open_files_.writers.clear();
  ASSERT_TRUE(seal(*store_, at("/steps/s1")));
  const InodeNumber step = at("/steps/s1");
  EXPECT_EQ(tree().make(step, "new", {S_IFREG, 0, {}}, user()).error().errno_value(), EPERM);
  EXPECT_EQ(tree().link(file, kRootInode, "out").error().errno_value(), EPERM);
  EXPECT_EQ(tree().rename(step, "offloaded_tensors", kRootInode, "out", 0).error().errno_value(), EPERM);
  EXPECT_EQ(tree().truncate(file, 0).error().errno_value(), EPERM);
  EXPECT_EQ(tree().change_attributes(file, {0600, {}, {}, {}, {}}).error().errno_value(), EPERM);
  EXPECT_EQ(save("s1").error().errno_value(), EPERM);
  ASSERT_TRUE(tree().rename(at("/steps"), "s1", at("/steps"), "renamed", 0));
  ASSERT_TRUE(set_pinned(*store_, step, true));
  EXPECT_EQ(tree().unlink(step, "zero_pp_rank_0_mp_rank_00_model_states.pt").error().errno_value(), EPERM);
  ASSERT_TRUE(set_pinned(*store_, step, false));
  remove("/steps/renamed/zero_pp_rank_0_mp_rank_00_model_states.pt");
  EXPECT_TRUE(store_->index().step(step).value().being_removed);
  expect_clean_fsck();
}

TEST_F(SealTest, AFileThatIsOpenedWhileItsCopyIsSealedKeepsItsBlob) {
  ASSERT_TRUE(save("s1"));
  const InodeNumber mapped = make_file("/steps/s1/a", "mapped");
  make_file("/steps/s1/b", "looked at after it");
  void* mapping = nullptr;
  {
    const auto fd = tree().open_blob(mapped, O_RDWR);
    ASSERT_TRUE(fd);
    mapping = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.value().get(), 0);
    ASSERT_NE(mapping, MAP_FAILED);
  }
  const BlobNumber blob = tree().inode(mapped).value().blob;
  open_files_.asked_for_writers = [&] { open_files_.asked_for_writers = [&] { open_files_.readers.insert(mapped); }; };
  EXPECT_EQ(seal(*store_, at("/steps/s1")).error().errno_value(), EBUSY);
  EXPECT_EQ(tree().inode(mapped).value().blob, blob);
  open_files_.readers.clear();
  EXPECT_TRUE(seal(*store_, at("/steps/s1")));
  EXPECT_NE(tree().inode(mapped).value().blob, blob);
  ::munmap(mapping, 4096);
}

// Somebody opens the file after the seal has asked for the last time who has it open.
TEST_F(SealTest, AFileThatIsOpenedAsItsCopyIsSealedIsOpenedAsTheCopy) {
  ASSERT_TRUE(save("s1"));
  const InodeNumber mapped = make_file("/steps/s1/a", "mapped");
  void* mapping = nullptr;
  {
    const auto fd = tree().open_blob(mapped, O_RDWR);
    ASSERT_TRUE(fd);
    mapping = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.value().get(), 0);
    ASSERT_NE(mapping, MAP_FAILED);
  }
  std::future<ino_t> opened;
  const auto open = [&] {
    opened = std::async(std::launch::async, [&]() -> ino_t {
      const auto fd = tree().open_blob(mapped, O_RDONLY);
      const auto st = fd ? io::stat_fd(fd.value().get()) : fd.error();
      return st ? st.value().st_ino : 0;
    });
    opened.wait_for(std::chrono::milliseconds(200));
  };
  open_files_.asked = [&] { open_files_.asked = open; };  // the first question comes before the copy is made
  ASSERT_TRUE(seal(*store_, at("/steps/s1")));
  ASSERT_TRUE(opened.valid());
  EXPECT_EQ(opened.get(), store_->blobs().stat(tree().inode(mapped).value().blob).value().st_ino);
  ::munmap(mapping, 4096);
}

// The seal has looked for what is in the step, and waits at its gate for an operation that makes one more file.
TEST_F(SealTest, AFileThatIsMadeInAStepWhileItIsSealedIsNotLeftOut) {
  ASSERT_TRUE(save("s1"));
  const InodeNumber step = at("/steps/s1");
  std::future<Result<>> sealing;
  {
    const Gate::Pass making = tree().gate().enter({step}, [] {});
    ASSERT_TRUE(making);
    sealing = std::async(std::launch::async, [&] { return seal(*store_, step); });
    const auto is_closed = [&] { return !tree().gate().enter({step}, [] {}); };
    while (!is_closed() && sealing.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) continue;
    make_file("/steps/s1/late", "of another rank");
  }
  const auto sealed = sealing.get();
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().errno_value(), EBUSY);
  ASSERT_TRUE(seal(*store_, step));
  EXPECT_EQ(tree().truncate(at("/steps/s1/late"), 0).error().errno_value(), EPERM);
  expect_clean_fsck();
}

TEST_F(SealTest, AFileThatGetsANameOutsideWhileItIsSealedSharesNoBlobWithIt) {
  ASSERT_TRUE(save("s1"));
  const InodeNumber linked = make_file("/steps/s1/a", "linked");
  make_file("/steps/s1/b", "looked at after it");
  open_files_.asked_for_writers = [&] {
    open_files_.asked_for_writers = [&] { ASSERT_TRUE(tree().link(linked, at(""), "outside")); };
  };
  const auto sealed = seal(*store_, at("/steps/s1"));
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().errno_value(), EBUSY);
  ASSERT_TRUE(seal(*store_, at("/steps/s1")));
  EXPECT_NE(tree().inode(at("/outside")).value().blob, tree().inode(at("/steps/s1/a")).value().blob);
  expect_clean_fsck();
}

TEST_F(SealTest, AFileThatLosesItsNameOutsideWhileItIsSealedKeepsItsBlob) {
  ASSERT_TRUE(save("s1"));
  const InodeNumber linked = make_file("/steps/s1/a", "linked");
  ASSERT_TRUE(tree().link(linked, at(""), "outside"));
  make_file("/steps/s1/b", "looked at after it");
  const BlobNumber blob = tree().inode(linked).value().blob;
  open_files_.asked_for_writers = [&] {
    open_files_.asked_for_writers = [&] {
      open_files_.readers.insert(linked);
      remove("/outside");
    };
  };
  const auto sealed = seal(*store_, at("/steps/s1"));
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().errno_value(), EBUSY);
  EXPECT_EQ(tree().inode(linked).value().blob, blob);
  EXPECT_TRUE(seal(*store_, at("/steps/s1")));
  EXPECT_EQ(tree().inode(linked).value().blob, blob);
}

TEST_F(SealTest, SealingGivesNamesInsideTheStepTheirOwnInode) {
  ASSERT_TRUE(save("s1"));
  make_file("/outside", "shared");
  ASSERT_TRUE(tree().link(at("/outside"), at("/steps/s1"), "inside"));
  ASSERT_TRUE(seal(*store_, at("/steps/s1")));
  EXPECT_NE(at("/outside"), at("/steps/s1/inside"));
  EXPECT_EQ(open_files_.invalidated.size(), 1U);
  write("/outside", "CHANGED");
  EXPECT_EQ(read("/steps/s1/inside"), "shared");
  expect_clean_fsck();
}

// An unchanged file is one blob in all of its steps. If the sealed step links it from two of them, the seal takes two
// references in one change.
TEST_F(SealTest, SealingCountsEachReferenceToABlob) {
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(save("s2"));
  make_folder("/steps/global_step3");
  const std::string file = "/offloaded_tensors/rank00/0_2.tensor.swp";
  make_file("/steps/global_step3/mp_rank_00_model_states.pt", "weights");
  ASSERT_TRUE(tree().link(at("/steps/s1" + file), at("/steps/global_step3"), "first"));
  ASSERT_TRUE(tree().link(at("/steps/s2" + file), at("/steps/global_step3"), "second"));
  ASSERT_TRUE(seal(*store_, at("/steps/global_step3")));
  EXPECT_EQ(store_->index().blob(tree().inode(at("/steps/global_step3/first")).value().blob).value().references, 4U);
  expect_clean_fsck();
}

TEST_F(SealTest, WhatIsSealedOfALinkedFileHasItsXattrsAndReservesNothing) {
  ASSERT_TRUE(save("s1"));
  make_folder("/steps/global_step2");
  make_file("/steps/global_step2/mp_rank_00_model_states.pt", "weights");
  ASSERT_TRUE(tree().link(at(kLive), at("/steps/global_step2"), "inside"));
  ASSERT_TRUE(tree().set_xattr(at(kLive), "user.run", "7", 0));
  ASSERT_TRUE(seal(*store_, at("/steps/global_step2")));
  const auto xattr = tree().xattr(at("/steps/global_step2/inside"), "user.run");
  ASSERT_TRUE(xattr) << xattr.error().message();
  EXPECT_EQ(xattr.value(), "7");
  EXPECT_EQ(tree().inode(at("/steps/global_step2/inside")).value().cow_reserve, 0U);
  EXPECT_GE(tree().inode(at(kLive)).value().cow_reserve, 1U << 20);
  const uint64_t cow_reserve = store_->space().cow_reserve;
  reopen();
  EXPECT_EQ(store_->space().cow_reserve, cow_reserve);
  expect_clean_fsck();
}

// A Trainer's checkpoint-N contains DeepSpeed's global_stepN.
TEST_F(SealTest, AStepWithinAStepIsSealedAndPinnedWithIt) {
  make_folder("/steps/checkpoint-5");
  make_file("/steps/checkpoint-5/trainer_state.json");
  make_folder("/steps/checkpoint-5/global_step5");
  make_file("/steps/checkpoint-5/global_step5/mp_rank_00_model_states.pt", "weights");
  const InodeNumber outer = at("/steps/checkpoint-5"), inner = at("/steps/checkpoint-5/global_step5");
  ASSERT_TRUE(set_pinned(*store_, inner, true));
  EXPECT_EQ(tree().take_out(at("/steps"), "checkpoint-5", outer).error().errno_value(), EPERM);
  ASSERT_TRUE(set_pinned(*store_, inner, false));
  ASSERT_TRUE(seal(*store_, outer));
  EXPECT_TRUE(store_->index().step(inner).value().sealed);
  ASSERT_TRUE(set_pinned(*store_, outer, true));
  EXPECT_EQ(tree().unlink(inner, "mp_rank_00_model_states.pt").error().errno_value(), EPERM);
  ASSERT_TRUE(set_pinned(*store_, outer, false));
  remove("/steps/checkpoint-5/global_step5/mp_rank_00_model_states.pt");
  EXPECT_TRUE(store_->index().step(outer).value().being_removed);
  expect_clean_fsck();
}

}  // namespace
}  // namespace ckptfs::meta

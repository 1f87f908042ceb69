#include "io/clone.h"
#include "io/fault.h"
#include "tests/meta/scratch_store.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace ckptfs::meta {
namespace {

constexpr const char* kSaved = "/steps/s1/offloaded_tensors/rank00/0_2.tensor.swp";

using SaveTest = ScratchSwapState;

TEST_F(SaveTest, AStepHoldsWhatTheLiveFilesHeld) {
  const std::string before = read(kLive);
  const auto saved = save("s1");
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(saved.value().files, 8U);
  EXPECT_EQ(saved.value().cloned, 8U);
  write(kLive, "changed");
  EXPECT_EQ(read(kSaved), before);
  EXPECT_FALSE(tree().resolve("/steps/s1/offloaded_tensors/rank00/0_2_gradient_0_1024.tensor.swp"));
  EXPECT_EQ(read("/steps/s1/offloaded_params/rank01/7_param.tensor.swp").substr(1 << 20), "rank1");
  expect_clean_fsck();
}

TEST_F(SaveTest, AnUnchangedStateIsNotClonedAgain) {
  ASSERT_TRUE(save("s1"));
  const size_t blobs = blob_files();
  const auto again = save("s2");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again.value().cloned, 0U);
  EXPECT_EQ(blob_files(), blobs);
  write(kLive, "x");
  EXPECT_EQ(save("s3").value().cloned, 1U);
  expect_clean_fsck();
}

TEST_F(SaveTest, TheSameTagIsTheSameSaveOrAnError) {
  ASSERT_TRUE(save("s1"));
  const auto again = save("s1");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(again.value().already_saved);
  write(kLive, "x");
  EXPECT_EQ(save("s1").error().errno_value(), EEXIST);
}

TEST_F(SaveTest, TwoNamesOfOneFileShareOneBlob) {
  ASSERT_TRUE(tree().link(at(kLive), at("/zero_stage_3/optimizer/rank0"), "other.tensor.swp"));
  const uint64_t cow_reserve = store_->space().cow_reserve;
  const auto saved = save("s1");
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(saved.value().files, 9U);
  EXPECT_EQ(saved.value().cloned, 8U);
  EXPECT_EQ(read("/steps/s1/offloaded_tensors/rank00/other.tensor.swp"), read(kLive));
  ASSERT_TRUE(save("s2"));
  remove("/zero_stage_3/optimizer/rank0/other.tensor.swp");
  EXPECT_LE(store_->space().cow_reserve, cow_reserve + 8 * (uint64_t{2} << 20));
  expect_clean_fsck();
}

TEST_F(SaveTest, AStepMadeByOthersWithSwapStateIsLeftAlone) {
  make_folder("/steps/s1");
  make_folder("/steps/s1/offloaded_tensors");
  EXPECT_EQ(save("s1").error().errno_value(), EEXIST);
}

TEST_F(SaveTest, AWriterWhoHasItOpenIsNeverTakenForUnchanged) {
  open_files_.writers.insert(at(kLive));
  ASSERT_TRUE(save("s1"));
  EXPECT_EQ(save("s2").value().cloned, 1U);
  open_files_.writers.erase(at(kLive));  // it wrote behind the save before it closed
  EXPECT_EQ(save("s3").value().cloned, 1U);
}

TEST_F(SaveTest, AMappingThatOutlivedItsDescriptorCountsAsChange) {
  ASSERT_TRUE(save("s1"));
  void* mapping = nullptr;
  {
    const auto fd = tree().open_blob(at(kLive), O_RDWR);
    ASSERT_TRUE(fd);
    mapping = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.value().get(), 0);
    ASSERT_NE(mapping, MAP_FAILED);
  }
  *static_cast<char*>(mapping) = '!';
  EXPECT_EQ(save("s2").value().cloned, 1U);
  EXPECT_EQ(read("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp")[0], '!');
  EXPECT_NE(read(kSaved)[0], '!');
  ::munmap(mapping, 4096);
}

TEST_F(SaveTest, FilesThatComeAndGoBeforeTheGateAreTakenAsTheyAreBehindIt) {
  open_files_.writers.insert(at("/zero_stage_3/optimizer/rank1/0_2.tensor.swp"));
  open_files_.meanwhile = [this] {
    remove(kLive);
    make_file("/zero_stage_3/optimizer/rank0/3_3.tensor.swp", "new");
    make_folder("/zero_stage_3/optimizer/rank2");
    make_file("/zero_stage_3/optimizer/rank2/4_4.tensor.swp", "of a new rank");
    write("/zero_stage_3/optimizer/rank0/exp_avg-0_2.tensor.swp", "later");
  };
  const auto saved = save("s1");
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(saved.value().files, 9U);
  EXPECT_FALSE(tree().resolve(kSaved));
  EXPECT_EQ(read("/steps/s1/offloaded_tensors/rank00/3_3.tensor.swp"), "new");
  EXPECT_EQ(read("/steps/s1/offloaded_tensors/rank02/4_4.tensor.swp"), "of a new rank");
  EXPECT_EQ(read("/steps/s1/offloaded_tensors/rank00/exp_avg-0_2.tensor.swp").substr(0, 5), "later");
  expect_clean_fsck();
}

// The names of folders whose inodes have gone: as it looks to a plan that is made while they are removed.
TEST_F(SaveTest, FoldersThatGoWhileAPlanIsMadeAreLeftOut) {
  const InodeNumber source = at("/zero_stage_3");
  Tree::Change change = tree().begin();
  change.batch.put_entry(source, "float16params", {999'999, S_IFDIR});
  change.batch.put_entry(at("/zero_stage_3/optimizer"), "rank7", {999'998, S_IFDIR});
  ASSERT_TRUE(tree().commit(std::move(change)));
  const auto plan = plan_save(tree(), source, {1000, 1000, {}});
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_EQ(plan.value().files.size(), 8U);
}

TEST_F(SaveTest, DataThatIsMissingFailsTheSaveWhole) {
  const auto record = tree().inode(at(kLive));
  ASSERT_TRUE(record);
  ASSERT_TRUE(store_->blobs().remove(record.value().blob));
  const auto saved = save("s1");
  EXPECT_EQ(saved.error().errno_value(), EIO);
  EXPECT_NE(saved.error().message().find("0_2.tensor.swp"), std::string::npos) << saved.error().message();
  EXPECT_FALSE(tree().resolve("/steps/s1"));
  EXPECT_EQ(blob_files(), 9U);  // of ten live files
}

TEST_F(SaveTest, WhatASaveThatFailedHadClonedDoesNotCountAsSaved) {
  open_files_.writers.insert(at("/zero_stage_3/optimizer/rank1/0_2.tensor.swp"));
  open_files_.meanwhile = [this] { make_folder("/steps/s1"); };  // the save finds it after it has cloned everything
  EXPECT_EQ(save("s1").error().errno_value(), EEXIST);
  open_files_.meanwhile = nullptr;
  const auto saved = save("s2");
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(saved.value().cloned, 8U);
  EXPECT_EQ(read("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp"), read(kLive));
  expect_clean_fsck();
}

// A save shares the files that it does not clone with the previous step. That step may be removed before the save is
// published.
TEST_F(SaveTest, ARemovalBesideASaveMakesItBeginAnew) {
  const auto first = save("s1");
  ASSERT_TRUE(first);
  const BlobNumber shared = tree().inode(at(kSaved)).value().blob;
  uint64_t asked = 0;
  const std::function<void()> remove_behind_gate = [&] {
    if (asked++ < first.value().files) {  // not yet: it looks for what to write back
      open_files_.asked_for_writers = remove_behind_gate;
      return;
    }
    const auto remove_the_shared = [&] {
      remove(kSaved);
      // wait for the reaper's next round
      for (int i = 0; i < 1000 && store_->index().blob(shared); ++i) ::usleep(10000);
    };
    EXPECT_FALSE(tree().gate().enter({at(kLive)}, remove_the_shared));
  };
  open_files_.asked_for_writers = remove_behind_gate;
  const auto saved = save("s2");
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_FALSE(store_->index().blob(shared));
  EXPECT_EQ(saved.value().cloned, 1U);
  EXPECT_EQ(read("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp"), read(kLive));
  expect_clean_fsck();
}

TEST_F(SaveTest, OfANameThatTwoDtypesHaveTheOneWrittenLastIsTaken) {
  make_folder("/zero_stage_3/float16params");
  make_folder("/zero_stage_3/float16params/rank0");
  make_file("/zero_stage_3/float16params/rank0/7_param.tensor.swp", "old");
  write("/zero_stage_3/bfloat16params/rank0/7_param.tensor.swp", "last");
  const auto saved = save("s1");
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(saved.value().files, 8U);
  ASSERT_EQ(saved.value().warnings.size(), 1U);
  EXPECT_NE(saved.value().warnings[0].find("two dtypes"), std::string::npos) << saved.value().warnings[0];
  EXPECT_EQ(read("/steps/s1/offloaded_params/rank00/7_param.tensor.swp").substr(0, 4), "last");
}

// Lowers the soft limit on descriptors within the scope.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = count;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(SaveTest, MoreFilesThanDescriptorsCanBeSaved) {
  constexpr int kFiles = 300;
  const FewDescriptors few(200);
  for (int i = 0; i < kFiles; ++i) {
    make_file("/zero_stage_3/optimizer/rank0/" + std::to_string(i) + "_9.tensor.swp", std::to_string(i));
  }
  const auto saved = save("s1");
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_EQ(saved.value().files, 8U + kFiles);
  EXPECT_EQ(read("/steps/s1/offloaded_tensors/rank00/299_9.tensor.swp"), "299");
}

TEST_F(SaveTest, TheNextSaveClonesIntoSpareBlobs) {
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(spares_become(8));
  const auto before = store_->blobs().list();
  write(kLive, "changed");
  const auto again = save("s2");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again.value().cloned, 1U);
  const BlobNumber blob = tree().inode(at("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp")).value().blob;
  EXPECT_TRUE(std::find(before.value().begin(), before.value().end(), blob) != before.value().end());
  EXPECT_EQ(read("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp"), read(kLive));
  EXPECT_EQ(store_->spares().ready(), 7U);
  const size_t filled = blob_files();
  close();
  open();
  EXPECT_EQ(store_->blobs().list().value().size(), filled);  // no blob is left behind
  expect_clean_fsck();
}

#ifdef CKPTFS_FAULT_POINTS
TEST_F(SaveTest, ASaveThatClonesNothingLeavesTheWishForSpares) {
  io::set_fault("spares.create", "sleep:300");
  store_->spares().prepare(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the thread is busy with that one
  store_->spares().prepare(8);
  store_->spares().prepare(0);
  io::set_fault("spares.create", "");
  EXPECT_TRUE(spares_become(8));
}

TEST_F(SaveTest, WithFewerSparesThanFilesASaveCreatesTheRest) {
  io::set_fault("spares.create", "4:error:ENOSPC");
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(spares_become(3));
  io::set_fault("spares.create", "");
  for (const std::string rank : {"rank0", "rank1"}) {
    for (const std::string name : {"0_2", "exp_avg-0_2"}) {
      write("/zero_stage_3/optimizer/" + rank + "/" + name + ".tensor.swp", "changed");
    }
  }
  const auto again = save("s2");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again.value().cloned, 4U);
  EXPECT_EQ(read("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp"), read(kLive));
  expect_clean_fsck();
}
#endif

TEST_F(SaveTest, SavedFilesAreFrozen) {
  ASSERT_TRUE(save("s1"));
  EXPECT_EQ(tree().prepare_writing(at(kSaved), user(), 0).error().errno_value(), EPERM);
  EXPECT_EQ(tree().truncate(at(kSaved), 0).error().errno_value(), EPERM);
  EXPECT_EQ(tree().open_blob(at(kSaved), O_RDWR).error().errno_value(), EPERM);
}

TEST_F(SaveTest, BadTagsAndSourcesAreErrorsInWords) {
  for (const char* tag : {"", ".", "..", "latest", "a/b", "a\nb"}) {
    EXPECT_EQ(save(tag).error().errno_value(), EINVAL) << tag;
  }
  make_folder("/other");
  make_folder("/other/zero_stage_2");
  const auto several = save("s1");
  ASSERT_FALSE(several);
  EXPECT_EQ(several.error().errno_value(), EINVAL);
  EXPECT_NE(several.error().message().find("/other/zero_stage_2"), std::string::npos);
  ASSERT_TRUE(set_source(*store_, at("/steps"), at("/zero_stage_3")));
  EXPECT_TRUE(save("s1"));
}

TEST_F(SaveTest, ASourceThatTheCallerCanReachNoMoreIsNotSaved) {
  const auto above = tree().make(kRootInode, "other", {S_IFDIR | 0755, 0, {}}, {2000, 2000, ::getpid()});
  ASSERT_TRUE(above);
  ASSERT_TRUE(tree().rename(kRootInode, "zero_stage_3", at("/other"), "zero_stage_3", 0));
  ASSERT_TRUE(set_source(*store_, at("/steps"), at("/other/zero_stage_3")));
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(tree().change_attributes(at("/other"), {0700, {}, {}, {}, {}}));
  for (const char* tag : {"s1", "s2"}) {
    const auto refused = save(tag);
    ASSERT_FALSE(refused) << tag;
    EXPECT_EQ(refused.error().errno_value(), EACCES);
  }
  EXPECT_FALSE(tree().resolve("/steps/s2"));
}

TEST_F(SaveTest, RemovingAStepFreesItsBlobs) {
  const size_t live = blob_files();
  ASSERT_TRUE(save("s1"));
  for (const std::string group : {"offloaded_tensors", "offloaded_params"}) {
    for (const std::string rank : {"rank00", "rank01"}) {
      const std::string folder = "/steps/s1/" + group + "/" + rank;
      const auto entries = tree().list(at(folder));
      ASSERT_TRUE(entries);
      for (const DirectoryEntry& entry : entries.value()) remove(folder + "/" + entry.name);
    }
  }
  reopen();
  EXPECT_EQ(blob_files(), live);
  expect_clean_fsck();
}

TEST_F(SaveTest, ASaveThatWouldOweMoreThanIsFreeFailsWhole) {
  const std::string filler = leave_free(4 * kMiB);
  const size_t blobs = blob_files();
  const auto refused = save("s1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value(), ENOSPC);
  EXPECT_FALSE(tree().resolve("/steps/s1"));
  EXPECT_EQ(blob_files(), blobs);
  std::filesystem::remove(filler);
  EXPECT_TRUE(save("s1"));
  expect_clean_fsck();
}

TEST_F(SaveTest, OverwritingShrinksTheCowReserve) {
  ASSERT_TRUE(save("s1"));
  const uint64_t cow_reserve = store_->space().cow_reserve;
  EXPECT_GE(cow_reserve, 8U << 20);
  write(kLive, read(kLive));
  EXPECT_LT(store_->space().cow_reserve, cow_reserve);
}

TEST_F(SaveTest, SwapStateThatCameMeanwhileIsNotReplaced) {
  make_folder("/steps/s1");
  open_files_.writers.insert(at(kLive));
  open_files_.meanwhile = [this] {
    make_folder("/steps/s1/offloaded_tensors");
    make_file("/steps/s1/offloaded_tensors/kept", "of another");
    open_files_.meanwhile = nullptr;
  };
  EXPECT_EQ(save("s1").error().errno_value(), EEXIST);
  EXPECT_EQ(read("/steps/s1/offloaded_tensors/kept"), "of another");
  open_files_.writers.clear();
  expect_clean_fsck();
}

TEST_F(SaveTest, TheCowReserveOfAFileIsNotCountedWhileASaveClonesIt) {
  ASSERT_TRUE(save("s1"));
  const uint64_t cow_reserve = tree().inode(at(kLive)).value().cow_reserve;
  ASSERT_GT(cow_reserve, 0U);
  tree().begin().begin_cloning({at(kLive)});
  write(kLive, std::string(2 << 20, 'n'));  // pays: until the clone is made, nothing of it is shared
  EXPECT_EQ(tree().inode(at(kLive)).value().cow_reserve, cow_reserve);
  tree().end_cloning();
  tree().finished_writing(at(kLive));
  EXPECT_EQ(tree().inode(at(kLive)).value().cow_reserve, 0U);
}

TEST_F(SaveTest, SwapFoldersAreFoundWhileOtherFoldersComeAndGo) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      for (int i = 0; i < 50; ++i) {
        const auto made = tree().make(kRootInode, "x" + std::to_string(i), {S_IFDIR | 0755, 0, {}}, user());
        if (!made) ADD_FAILURE() << made.error().message();
      }
      for (int i = 0; i < 50; ++i) {
        const auto gone = tree().remove_directory(kRootInode, "x" + std::to_string(i));
        if (gone) tree().reap(gone.value().inode);
      }
    }
  });
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    const auto found = list_swap_folders(tree());
    EXPECT_TRUE(found) << found.error().message();
    if (found) {
      EXPECT_EQ(found.value(), std::vector{at("/zero_stage_3")});
    }
  }
  stop = true;
  other.join();
}

TEST_F(SaveTest, PerhapsStaleFilesAreNamed) {
  // Makes it look as if the newest writer of rank0 had begun long after its files were written.
  Tree::Change change = tree().begin();
  InodeRecord folder = store_->index().inode(at("/zero_stage_3/optimizer/rank0")).value();
  folder.newest_writer = UINT64_MAX;
  change.batch.put(at("/zero_stage_3/optimizer/rank0"), folder);
  ASSERT_TRUE(tree().commit(std::move(change)));
  const auto saved = save("s1");
  ASSERT_TRUE(saved) << saved.error().message();
  ASSERT_EQ(saved.value().warnings.size(), 1U);
  EXPECT_NE(saved.value().warnings[0].find("3 perhaps stale"), std::string::npos) << saved.value().warnings[0];
  EXPECT_NE(store_->index().step(at("/steps/s1")).value().stale.find("exp_avg-0_2"), std::string::npos);
}

}  // namespace
}  // namespace ckptfs::meta

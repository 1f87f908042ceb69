#include "meta/blobs/write_back.h"

#include <thread>

#include "io/fault.h"
#include "meta/care/digests.h"
#include "meta/care/sharing.h"
#include "meta/steps/partial.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

constexpr const char* kOther = "/zero_stage_3/optimizer/rank1/0_2.tensor.swp";
constexpr const char* kModel = "/steps/global_step7/mp_rank_00_model_states.pt";

class WriteBackTest : public ScratchSwapState {
 protected:
  void TearDown() override {
    io::set_fault("write_back.sync", "");
    io::set_fault("write_back.sync_all", "");
    io::set_fault("write_back.before_names", "");
    if (store_) crash();  // a close reports the suspect files
    ScratchSwapState::TearDown();
  }
  Result<> sync(const std::string& path) {
    TRY_ASSIGN(const io::Fd fd, tree().open_blob(at(path), O_RDONLY));
    return tree().sync_file(at(path), fd.get());
  }
  // The disk refuses what was written to the file, and reports it once.
  void fail(const std::string& path) {
    io::set_fault("write_back.sync", "1:error:EIO");
    EXPECT_EQ(sync(path).error().errno_value(), EIO);
    io::set_fault("write_back.sync", "");
  }
  bool is_suspect(const std::string& path) {
    const auto record = tree().inode(at(path));
    return !tree().write_back().check(record.value().blob);
  }
  static bool names(const Error& error, const std::string& path) {
    return error.message().find(path) != std::string::npos;
  }
};

TEST_F(WriteBackTest, AFailureStaysAFailureHoweverOftenItIsAsked) {
  fail(kLive);
  EXPECT_FALSE(sync(kLive));
  EXPECT_FALSE(sync(kLive));
  EXPECT_TRUE(sync(kOther));
  crash();
  open();
  EXPECT_FALSE(sync(kLive));
  ASSERT_TRUE(tree().truncate(at(kLive), 0));
  EXPECT_TRUE(sync(kLive));
  close();
  open();
  EXPECT_TRUE(sync(kLive));
  expect_clean_fsck();
}

TEST_F(WriteBackTest, WhatTakesAnothersPlaceIsWrittenBackBeforeItsName) {
  make_file("/latest", "old");
  make_file("/tmp", "new");
  io::set_fault("write_back.before_names", "error:EIO");
  ASSERT_TRUE(tree().rename(kRootInode, "tmp", kRootInode, "latest", 0));
  EXPECT_FALSE(is_suspect("/latest"));
  ASSERT_TRUE(tree().sync());
  EXPECT_TRUE(is_suspect("/latest"));
  crash();
  open();
  EXPECT_TRUE(is_suspect("/latest"));
}

// A sync that runs already has asked before for what is replaced.
TEST_F(WriteBackTest, WhatTakesAnothersPlaceDuringASyncIsWrittenBackAtOnce) {
  make_file("/latest", "old");
  make_file("/tmp", "new");
  io::set_fault("write_back.before_names", "error:EIO");
  tree().write_back().before_sync();
  ASSERT_TRUE(tree().rename(kRootInode, "tmp", kRootInode, "latest", 0));
  tree().write_back().after_sync();
  EXPECT_TRUE(is_suspect("/latest"));
  crash();
  open();
  EXPECT_TRUE(is_suspect("/latest"));
}

TEST_F(WriteBackTest, ASaveOfASuspectFileFailsAndNamesIt) {
  fail(kLive);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto saved = save("s1");
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().errno_value(), EIO);
    EXPECT_TRUE(names(saved.error(), kLive)) << saved.error().message();
  }
  EXPECT_FALSE(tree().resolve("/steps/s1"));
  ASSERT_TRUE(tree().truncate(at(kLive), 0));
  write(kLive, std::string(1 << 20, 'n'));
  const auto saved = save("s1");
  EXPECT_TRUE(saved) << saved.error().message();
  expect_clean_fsck();
}

// What is left of it is still what the disk refused.
TEST_F(WriteBackTest, ASuspectFileThatIsCutShortStaysSuspect) {
  fail(kLive);
  ASSERT_TRUE(tree().truncate(at(kLive), 4096));
  EXPECT_TRUE(is_suspect(kLive));
  EXPECT_FALSE(save("s1"));
  ASSERT_TRUE(tree().truncate(at(kLive), 0));
  EXPECT_FALSE(is_suspect(kLive));
}

TEST_F(WriteBackTest, AnErrorThatNoFileExplainsMakesAllSuspectThatWasWritten) {
  ASSERT_TRUE(save("s1"));
  tree().write_back().prune([](InodeNumber) { return false; });
  ASSERT_TRUE(tree().prepare_writing(at(kLive), user(), 0));
  write(kLive, "more");
  io::set_fault("write_back.sync_all", "1:error:EIO");
  const auto failed = save("s2");
  ASSERT_FALSE(failed);
  EXPECT_TRUE(names(failed.error(), kLive)) << failed.error().message();
  EXPECT_TRUE(is_suspect(kLive));
  EXPECT_FALSE(is_suspect(kOther));
  EXPECT_FALSE(save("s2"));
  EXPECT_FALSE(save("s3"));
}

TEST_F(WriteBackTest, AFailureOfTheIndexExplainsNoErrorThatCameAfterACleanSync) {
  io::set_fault("index.sync", "1:error:EIO");
  make_folder("/unrelated");
  ASSERT_FALSE(tree().sync());
  io::set_fault("index.sync", "");
  ASSERT_TRUE(tree().write_back().sync_all());
  write(kLive, "more");
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_FALSE(save("s1"));
  EXPECT_TRUE(is_suspect(kLive));
  EXPECT_FALSE(save("s1"));
}

TEST_F(WriteBackTest, AnErrorOfOneFileLeavesThoseAloneThatWouldTellOfTheirOwn) {
  io::set_fault("write_back.sync_all", "1:error:EIO");
  io::set_fault("write_back.sync", "1:error:ENOSPC");
  EXPECT_EQ(save("s1").error().errno_value(), EIO);
  EXPECT_EQ(tree().write_back().suspects(), 1U);
}

TEST_F(WriteBackTest, AnErrorOfOneFileDoesNotHideThatOfOneWhichWasToldElsewhere) {
  ASSERT_TRUE(tree().prepare_writing(at(kOther), user(), 0));
  tree().write_back().note_synced_elsewhere(tree().inode(at(kOther)).value().blob);
  io::set_fault("write_back.sync_all", "1:error:EIO");
  fail(kLive);
  EXPECT_TRUE(is_suspect(kLive));
  EXPECT_TRUE(is_suspect(kOther));
}

TEST_F(WriteBackTest, WhatAnEarlierDaemonLetBeWrittenIsSuspectToo) {
  crash();
  open();
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_FALSE(tree().write_back().sync_all());
  EXPECT_TRUE(is_suspect(kLive));
  EXPECT_FALSE(save("s1"));
}

TEST_F(WriteBackTest, WhatFailedUnseenIsNotDigested) {
  make_file("/f", "content");
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_FALSE(take_digests(*store_, at("/f"), without_pause));
  EXPECT_TRUE(is_suspect("/f"));
}

TEST_F(WriteBackTest, AFailureWhileAFileIsTrustedAgainIsNotForgotten) {
  fail(kLive);
  const BlobNumber blob = tree().inode(at(kLive)).value().blob;
  io::set_fault("write_back.trust", "sleep:300");
  std::thread meanwhile([&] {
    ::usleep(100000);
    const auto fd = store_->blobs().open(blob, O_RDONLY);
    tree().write_back().failed(at(kLive), blob, fd.value().get(), Error(EIO));
  });
  EXPECT_TRUE(tree().write_back().trust(blob));
  meanwhile.join();
  io::set_fault("write_back.trust", "");
  EXPECT_TRUE(is_suspect(kLive));
  tree().write_back().prune([](InodeNumber) { return false; });
  crash();
  open();
  EXPECT_TRUE(is_suspect(kLive));
}

TEST_F(WriteBackTest, AFileExplainsNoErrorAfterItsOwn) {
  io::set_fault("write_back.sync_all", "1:error:EIO");
  fail(kLive);
  EXPECT_FALSE(is_suspect(kOther));
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_FALSE(tree().write_back().sync_all());
  EXPECT_TRUE(is_suspect(kOther));
}

TEST_F(WriteBackTest, TheCloseNamesWhatFailedSinceTheStart) {
  fail(kLive);
  const auto closed = store_->close();
  ASSERT_FALSE(closed);
  EXPECT_TRUE(names(closed.error(), kLive)) << closed.error().message();
  crash();
  open();
  EXPECT_FALSE(sync(kLive));
  EXPECT_TRUE(store_->close());
}

TEST_F(WriteBackTest, AFailureThatTheIndexCouldNotRecordIsRecordedLater) {
  io::set_fault("write_back.record", "1:error:EIO");
  fail(kLive);
  tree().write_back().prune([](InodeNumber) { return false; });
  crash();
  open();
  EXPECT_FALSE(sync(kLive));
}

TEST_F(WriteBackTest, WhatCanStillBeWrittenIsRememberedOverACleanSync) {
  ASSERT_TRUE(tree().prepare_writing(at(kLive), user(), 0));
  ASSERT_TRUE(tree().write_back().sync_all());
  tree().write_back().prune([&](InodeNumber inode) { return inode == at(kLive); });
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_FALSE(tree().write_back().sync_all());
  EXPECT_TRUE(is_suspect(kLive));
  EXPECT_FALSE(is_suspect(kOther));
}

// It was open while all was synced, and was written on through passthrough, which the daemon does not see.
TEST_F(WriteBackTest, WhatIsWrittenOnAfterACleanSyncIsRememberedToo) {
  ASSERT_TRUE(tree().prepare_writing(at(kLive), user(), 0));
  ASSERT_TRUE(tree().write_back().sync_all());
  tree().finished_writing(at(kLive));
  tree().write_back().prune([](InodeNumber) { return false; });
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_FALSE(tree().write_back().sync_all());
  EXPECT_TRUE(is_suspect(kLive));
  EXPECT_FALSE(is_suspect(kOther));
}

TEST_F(WriteBackTest, WhatIsWrittenOnAfterACleanSyncIsNotSureWithoutAnother) {
  ASSERT_TRUE(tree().prepare_writing(at(kLive), user(), 0));
  ASSERT_TRUE(tree().write_back().sync_all());
  tree().finished_writing(at(kLive));
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_FALSE(tree().write_back().make_sure(tree().inode(at(kLive)).value().blob));
  EXPECT_TRUE(is_suspect(kLive));
}

TEST_F(WriteBackTest, AStepWithASuspectFileIsNotSealed) {
  make_folder("/steps/global_step7");
  make_file(kModel, std::string(1 << 20, 'm'));
  fail(kModel);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto sealed = seal(*store_, at("/steps/global_step7"));
    ASSERT_FALSE(sealed);
    EXPECT_TRUE(names(sealed.error(), kModel)) << sealed.error().message();
  }
  const auto record = store_->index().find_step(at("/steps/global_step7"));
  ASSERT_TRUE(record);
  EXPECT_FALSE(record.value().value_or(StepRecord()).sealed);
}

TEST_F(WriteBackTest, AnAttemptWithASuspectFileIsNotCommitted) {
  const auto attempt = begin_partial(*store_, at("/steps"), "s1", "only", user());
  ASSERT_TRUE(attempt) << attempt.error().message();
  const std::string file = tree().path_of(attempt.value()) + "/rank00.safetensors";
  make_file(file, "weights");
  fail(file);
  const auto committed = commit_partial(*store_, attempt.value(), "s1");
  ASSERT_FALSE(committed);
  EXPECT_TRUE(names(committed.error(), file)) << committed.error().message();
  EXPECT_FALSE(tree().resolve("/steps/s1"));
  ASSERT_TRUE(tree().truncate(at(file), 0));
  EXPECT_TRUE(commit_partial(*store_, attempt.value(), "s1"));
}

TEST_F(WriteBackTest, AnErrorThatIsMetInTheSearchForSpaceIsNotForgotten) {
  const auto filler = leave_free(4 * kMiB);
  io::set_fault("write_back.sync_all", "1:error:EIO");
  EXPECT_EQ(save("s1").error().errno_value(), ENOSPC);
  io::set_fault("write_back.sync_all", "");
  std::filesystem::remove(filler);
  const auto saved = save("s1");
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().errno_value(), EIO);
  EXPECT_TRUE(names(saved.error(), "/zero_stage_3/")) << saved.error().message();
}

TEST_F(WriteBackTest, ASuspectFileIsNeitherDigestedNorShared) {
  make_folder("/steps/global_step7");
  make_file(kModel, std::string(1 << 20, 'm'));
  const std::string twin = std::string(kModel) + ".twin";
  make_file(twin, std::string(1 << 20, 'm'));
  ASSERT_EQ(take_digests(*store_, at(kModel), without_pause).value(), Taking::taken);
  ASSERT_EQ(take_digests(*store_, at(twin), without_pause).value(), Taking::taken);
  fail(kModel);
  EXPECT_EQ(take_digests(*store_, at(kModel), without_pause).value(), Taking::postponed);
  const auto blob = [&](const std::string& path) { return tree().inode(at(path)).value().blob; };
  EXPECT_EQ(share_equal_chunks(*store_, blob(kModel), blob(twin), without_pause).value(), 0U);
}

TEST_F(WriteBackTest, WhatTheDiskHoldsCanBeAccepted) {
  fail(kLive);
  const auto accepted = accept_from_disk(*store_, at(kLive));
  ASSERT_TRUE(accepted) << accepted.error().message();
  EXPECT_TRUE(accepted.value());
  EXPECT_TRUE(sync(kLive));
  EXPECT_TRUE(save("s1"));
  EXPECT_FALSE(accept_from_disk(*store_, at(kOther)).value());
  expect_clean_fsck();
}

}  // namespace
}  // namespace ckptfs::meta

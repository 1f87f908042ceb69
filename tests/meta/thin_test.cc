#include "meta/steps/thin.h"

#include "meta/formats/thinning.h"
#include "meta/tree/unpublished.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

constexpr const char* kFull = "/steps/global_step1";

class ThinTest : public ScratchStore {
 protected:
  void SetUp() override {
    ScratchStore::SetUp();
    if (IsSkipped()) return;
    make_folder(kFull);
    make_folder(std::string(kFull) + "/offloaded_tensors");
    make_folder(std::string(kFull) + "/offloaded_tensors/rank00");
    make_file(std::string(kFull) + "/offloaded_tensors/rank00/0_2.tensor.swp", "old");
    make_file(std::string(kFull) + "/mp_rank_00_model_states.pt", "states");
    make_file(std::string(kFull) + "/notes", "mine");
  }

  // One new file, "model.safetensors", takes the place of what DeepSpeed wrote.
  Thinning thinning(const std::string& content = "weights") {
    Thinning thinning;
    thinning.step = at(kFull);
    thinning.going = {"offloaded_tensors/rank00/0_2.tensor.swp", "mp_rank_00_model_states.pt"};
    thinning.check = [] { return Result<>(success()); };
    const auto blobs = promise_blobs(tree(), 1);
    EXPECT_TRUE(blobs);
    const auto fd = store_->blobs().create(blobs.value().front());
    EXPECT_TRUE(io::write_full(fd.value().get(), std::as_bytes(std::span(content)), 0));
    thinning.files.push_back({"model.safetensors", blobs.value().front(), 0640, 1000, 1000, {5, 6}});
    return thinning;
  }
  // As the mount does behind the change.
  void drop(const Thinned& thinned) {
    for (const Dropped& file : thinned.files) {
      if (file.last_name) tree().reap(file.inode);
    }
    std::vector<InodeNumber> directories = thinned.directories;
    while (!directories.empty()) {
      const auto purged = tree().purge(directories.back(), "", 1000);
      ASSERT_TRUE(purged);
      for (const Dropped& file : purged.value().files) tree().reap(file.inode);
      if (purged.value().done && purged.value().directories.empty()) {
        tree().reap(directories.back());
        directories.pop_back();
      }
      for (const InodeNumber inner : purged.value().directories) directories.push_back(inner);
    }
  }
  std::vector<std::string> names(const std::string& path) {
    std::vector<std::string> found;
    const auto entries = tree().list(at(path));
    for (const DirectoryEntry& entry : entries.value()) found.push_back(entry.name);
    return found;
  }
};

TEST_F(ThinTest, NewFilesTakeThePlaceOfOldOnes) {
  const InodeNumber step = at(kFull);
  const timespec before = tree().inode(step).value().mtime;
  const auto thinned = thin(*store_, thinning());
  ASSERT_TRUE(thinned) << thinned.error().message();
  EXPECT_EQ(names(kFull), (std::vector<std::string>{"model.safetensors", "notes"}));
  EXPECT_EQ(read(std::string(kFull) + "/model.safetensors"), "weights");
  EXPECT_EQ(read(std::string(kFull) + "/notes"), "mine");
  EXPECT_EQ(thinned.value().files.size(), 1U);
  EXPECT_EQ(thinned.value().directories.size(), 1U);
  const InodeRecord folder = tree().inode(step).value();
  EXPECT_EQ(at(kFull), step);
  EXPECT_EQ(folder.mtime.tv_sec, before.tv_sec);
  EXPECT_EQ(folder.mtime.tv_nsec, before.tv_nsec);
  EXPECT_EQ(folder.nlink, 2U);
  EXPECT_NE(folder.flags & kStep, 0U);
  const InodeRecord model = tree().inode(at(std::string(kFull) + "/model.safetensors")).value();
  EXPECT_EQ(model.mode & 07777, 0640U);
  EXPECT_TRUE(model.is_live_file());
  drop(thinned.value());
  expect_clean_fsck();
}

TEST_F(ThinTest, ASealedStepStaysSealed) {
  ASSERT_TRUE(seal(*store_, at(kFull)));
  const auto thinned = thin(*store_, thinning());
  ASSERT_TRUE(thinned) << thinned.error().message();
  const InodeRecord model = tree().inode(at(std::string(kFull) + "/model.safetensors")).value();
  EXPECT_NE(model.flags & kFrozen, 0U);
  EXPECT_NE(model.flags & kSealed, 0U);
  EXPECT_EQ(model.mtime.tv_sec, 5);
  EXPECT_EQ(tree().prepare_writing(at(std::string(kFull) + "/model.safetensors"), user(), 0).error().errno_value(),
            EPERM);
  EXPECT_TRUE(store_->index().step(at(kFull)).value().sealed);
  drop(thinned.value());
  expect_clean_fsck();
}

TEST_F(ThinTest, AFileOfTheSameNameIsReplaced) {
  make_file(std::string(kFull) + "/model.safetensors", "of the trainer");
  Thinning request = thinning();
  request.going.insert("model.safetensors");
  const auto thinned = thin(*store_, request);
  ASSERT_TRUE(thinned) << thinned.error().message();
  EXPECT_EQ(read(std::string(kFull) + "/model.safetensors"), "weights");
  drop(thinned.value());
  expect_clean_fsck();
}

TEST_F(ThinTest, AFolderWithSomethingElseStays) {
  make_file(std::string(kFull) + "/offloaded_tensors/mine", "mine");
  const auto thinned = thin(*store_, thinning());
  ASSERT_TRUE(thinned) << thinned.error().message();
  EXPECT_EQ(names(std::string(kFull) + "/offloaded_tensors"), (std::vector<std::string>{"mine"}));
  drop(thinned.value());
  expect_clean_fsck();
}

TEST_F(ThinTest, AFileWithANameElsewhereKeepsIt) {
  const InodeNumber states = at(std::string(kFull) + "/mp_rank_00_model_states.pt");
  ASSERT_TRUE(tree().link(states, kRootInode, "elsewhere"));
  const auto thinned = thin(*store_, thinning());
  ASSERT_TRUE(thinned) << thinned.error().message();
  drop(thinned.value());
  EXPECT_EQ(read("/elsewhere"), "states");
  expect_clean_fsck();
}

TEST_F(ThinTest, WhatIsRefusedLeavesTheStepAsItIs) {
  const auto before = names(kFull);
  Thinning request = thinning();
  request.check = [] { return Error(EBUSY, "it has changed"); };
  EXPECT_EQ(thin(*store_, request).error().message(), "it has changed");
  EXPECT_EQ(names(kFull), before);
  request = thinning();
  request.check = [this]() -> Result<> {
    EXPECT_TRUE(tree().make(at(kFull), "model.safetensors", {S_IFLNK | 0777, 0, "notes"}, user()));
    return success();
  };
  EXPECT_EQ(thin(*store_, request).error().errno_value(), EEXIST);
  remove(std::string(kFull) + "/model.safetensors");
  EXPECT_EQ(names(kFull), before);
  ASSERT_TRUE(set_pinned(*store_, at(kFull), true));
  EXPECT_EQ(thin(*store_, thinning()).error().errno_value(), EPERM);
  EXPECT_EQ(names(kFull), before);
  expect_clean_fsck();
}

// Also where the step cannot even be read.
TEST_F(ThinTest, OfAThinningThatFailsNoBlobStays) {
  const size_t blobs = blob_files();
  std::string folder = kFull;
  for (size_t depth = 0; depth <= kDeepestStep; ++depth) make_folder(folder += "/f");
  EXPECT_EQ(thin(*store_, thinning()).error().errno_value(), ELOOP);
  for (int i = 0; i < 1000 && blob_files() != blobs; ++i) ::usleep(10000);
  EXPECT_EQ(blob_files(), blobs);
  expect_clean_fsck();
}

// A change that was not published is taken back by the next start, and one that was is finished by it.
TEST_F(ThinTest, AfterACrashTheStepIsFullOrThin) {
  const size_t blobs = blob_files();
  thinning();
  ASSERT_TRUE(tree().sync());
  crash();
  open();
  EXPECT_EQ(read(std::string(kFull) + "/mp_rank_00_model_states.pt"), "states");
  for (int i = 0; i < 1000 && blob_files() != blobs; ++i) ::usleep(10000);
  EXPECT_EQ(blob_files(), blobs);
  const auto thinned = thin(*store_, thinning());
  ASSERT_TRUE(thinned) << thinned.error().message();
  crash();
  open();
  EXPECT_EQ(names(kFull), (std::vector<std::string>{"model.safetensors", "notes"}));
  EXPECT_EQ(store_->unpurged(), thinned.value().directories);
  drop({{}, store_->unpurged(), {}});
  expect_clean_fsck();
}

}  // namespace
}  // namespace ckptfs::meta

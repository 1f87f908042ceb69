#include <linux/fs.h>

#include "io/fault.h"
#include "meta/tree/step_detection.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using TreeTest = ScratchStore;

TEST_F(TreeTest, InodeNumbersSurviveARemountAndNeverComeBack) {
  const InodeNumber kept = make_file("/kept", "content");
  const InodeNumber removed = make_file("/removed");
  remove("/removed");
  reopen();
  EXPECT_EQ(at("/kept"), kept);
  EXPECT_EQ(read("/kept"), "content");
  EXPECT_GT(make_file("/new"), removed);
  expect_clean_fsck();
}

TEST_F(TreeTest, NamesFollowPosix) {
  make_folder("/a");
  make_file("/a/f", "1");
  make_folder("/b");
  EXPECT_EQ(tree().make(at("/a"), "f", {S_IFREG, 0, {}}, user()).error().errno_value(), EEXIST);
  EXPECT_EQ(tree().remove_directory(kRootInode, "a").error().errno_value(), ENOTEMPTY);
  EXPECT_EQ(tree().rename(kRootInode, "a", at("/a"), "inside", 0).error().errno_value(), EINVAL);
  EXPECT_EQ(tree().rename(at("/a"), "f", kRootInode, "b", 0).error().errno_value(), EISDIR);
  EXPECT_EQ(tree().rename(kRootInode, "b", kRootInode, "a", RENAME_NOREPLACE).error().errno_value(), EEXIST);
  EXPECT_EQ(tree().rename(kRootInode, "steps", kRootInode, "c", 0).error().errno_value(), EBUSY);
  EXPECT_EQ(tree().remove_directory(kRootInode, "steps").error().errno_value(), EBUSY);
  EXPECT_EQ(tree().make(kRootInode, "views", {S_IFDIR, 0, {}}, user()).error().errno_value(), EBUSY);
  ASSERT_TRUE(tree().rename(at("/a"), "f", at("/b"), "g", 0));
  EXPECT_EQ(read("/b/g"), "1");
  ASSERT_TRUE(tree().link(at("/b/g"), at("/a"), "h"));
  EXPECT_EQ(tree().attributes(at("/a/h")).value().stat.st_nlink, 2U);
  remove("/b/g");
  EXPECT_EQ(read("/a/h"), "1");
  ASSERT_TRUE(tree().rename(kRootInode, "b", at("/a"), "b", 0));
  EXPECT_EQ(tree().attributes(at("/a")).value().stat.st_nlink, 3U);
  expect_clean_fsck();
}

TEST_F(TreeTest, ARemovedFileKeepsItsBlobUntilReaped) {
  make_file("/f", "data");
  const InodeNumber file = at("/f");
  const auto dropped = tree().unlink(kRootInode, "f");
  ASSERT_TRUE(dropped);
  EXPECT_TRUE(dropped.value().last_name);
  EXPECT_TRUE(tree().open_blob(file, O_RDONLY));
  tree().reap(file);
  EXPECT_EQ(tree().attributes(file).error().errno_value(), ENOENT);
  close();
  open();
  EXPECT_EQ(blob_files(), 0U);
  expect_clean_fsck();
}

#ifdef CKPTFS_FAULT_POINTS
TEST_F(TreeTest, ARemovalThatTheDiskRefusesIsTriedAgain) {
  make_file("/f", "data");
  io::set_fault("reaper.before_remove", "1:error:EIO");
  remove("/f");
  for (int i = 0; i < 1000 && blob_files() != 0; ++i) ::usleep(10000);
  io::set_fault("reaper.before_remove", "");
  EXPECT_EQ(blob_files(), 0U);
  expect_clean_fsck();
}
#endif

TEST_F(TreeTest, ANamelessInodeGoesAtTheNextStart) {
  make_file("/f", "data");
  ASSERT_TRUE(tree().unlink(kRootInode, "f"));
  crash();
  open();
  reopen();
  EXPECT_EQ(blob_files(), 0U);
  expect_clean_fsck();
}

// Empties a directory that was taken out, which a removal does in the background.
void purge_all(Tree& tree, InodeNumber directory) {
  std::string after;
  for (bool done = false; !done;) {
    const auto purged = tree.purge(directory, after, 2);
    ASSERT_TRUE(purged) << purged.error().message();
    for (const InodeNumber below : purged.value().directories) purge_all(tree, below);
    for (const Dropped& file : purged.value().files) {
      if (file.last_name) tree.reap(file.inode);
    }
    done = purged.value().done;
    after = purged.value().last;
  }
  tree.reap(directory);
}

TEST_F(TreeTest, AWholeDirectoryIsTakenOutAtOnceAndPurgedBehind) {
  make_folder("/a");
  const InodeNumber taken = make_folder("/a/b");
  make_folder("/a/b/c");
  const InodeNumber file = make_file("/a/b/c/f", "data");
  make_file("/a/b/g", "more");
  ASSERT_TRUE(tree().link(at("/a/b/g"), at("/a/b"), "h"));
  ASSERT_TRUE(tree().link(at("/a/b/g"), at("/a"), "kept"));
  EXPECT_EQ(tree().purge(taken, {}, 1).error().errno_value(), EINVAL) << "it is in the tree";
  EXPECT_EQ(tree().take_out(kRootInode, "steps", at("/steps")).error().errno_value(), EBUSY);
  EXPECT_EQ(tree().take_out(at("/a"), "kept", at("/a/kept")).error().errno_value(), ENOTDIR);
  EXPECT_EQ(tree().take_out(at("/a"), "b", file).error().errno_value(), ENOENT) << "the name is another's";
  const InodeNumber inner = at("/a/b/c");
  ASSERT_TRUE(tree().take_out(at("/a"), "b", taken));
  EXPECT_FALSE(tree().resolve("/a/b"));
  EXPECT_EQ(tree().make(taken, "new", {S_IFREG, 0, {}}, user()).error().errno_value(), ENOENT);
  EXPECT_EQ(tree().attributes(at("/a")).value().stat.st_nlink, 2U);
  EXPECT_TRUE(tree().open_blob(file, O_RDONLY)) << "what is open stays";
  tree().reap(taken);
  EXPECT_TRUE(tree().inode(taken)) << "reaped before it is empty";
  // Another process empties it at the same time.
  const auto unlinked = tree().unlink(inner, "f");
  ASSERT_TRUE(unlinked);
  tree().reap(unlinked.value().inode);
  ASSERT_TRUE(tree().remove_directory(taken, "c"));
  tree().reap(inner);
  EXPECT_EQ(tree().inode(taken).value().nlink, 0U);
  purge_all(tree(), taken);
  EXPECT_FALSE(tree().inode(taken));
  EXPECT_FALSE(tree().inode(file));
  EXPECT_EQ(read("/a/kept"), "more");
  EXPECT_EQ(tree().attributes(at("/a/kept")).value().stat.st_nlink, 1U);
  reopen();
  EXPECT_EQ(blob_files(), 1U);
  expect_clean_fsck();
}

TEST_F(TreeTest, WhatWasNotPurgedIsFoundAtTheNextStart) {
  const InodeNumber taken = make_folder("/a");
  make_folder("/a/b");
  for (const char* const name : {"/a/f", "/a/g", "/a/h", "/a/b/i"}) make_file(name, "data");
  ASSERT_TRUE(tree().take_out(kRootInode, "a", taken));
  ASSERT_TRUE(tree().purge(taken, {}, 2));
  crash();
  open();
  EXPECT_FALSE(tree().resolve("/a"));
  ASSERT_FALSE(store_->unpurged().empty());
  const std::vector<InodeNumber> left = store_->unpurged();
  for (const InodeNumber directory : left) purge_all(tree(), directory);
  reopen();
  EXPECT_TRUE(store_->unpurged().empty());
  EXPECT_EQ(blob_files(), 0U);
  expect_clean_fsck();
}

TEST_F(TreeTest, ControlXattrsAreNeverListed) {
  make_folder("/zero_stage_3");
  ASSERT_TRUE(set_source(*store_, at("/steps"), at("/zero_stage_3")));
  ASSERT_TRUE(tree().set_xattr(at("/steps"), "user.mine", "1", 0));
  EXPECT_EQ(tree().list_xattrs(at("/steps")).value(), std::vector<std::string>{"user.mine"});
}

TEST_F(TreeTest, ADirectoryBecomesASeriesWithItsFirstStep) {
  const auto is_series = [&](const std::string& path) { return (tree().inode(at(path)).value().flags & kSeries) != 0; };
  for (const std::string series : {"/a", "/b", "/c", "/d", "/checkpoint-0"}) make_folder(series);
  // A file that identifies a checkpoint, or the second of two files that do so together.
  make_folder("/a/checkpoint-5");
  make_file("/a/checkpoint-5/config.json");
  make_file("/a/trainer_state.json");
  make_file("/a/checkpoint-5/notes.txt");
  EXPECT_FALSE(is_series("/a"));
  make_file("/a/checkpoint-5/model.safetensors");
  EXPECT_TRUE(is_series("/a"));
  // Files in a step, or in the root, make no series.
  make_folder("/a/checkpoint-5/global_step5");
  make_file("/a/checkpoint-5/global_step5/mp_rank_00_model_states.pt");
  EXPECT_FALSE(is_series("/a/checkpoint-5"));
  make_file("/checkpoint-0/trainer_state.json");
  EXPECT_EQ(tree().inode(kRootInode).value().flags & kSeries, 0U);
  // A Trainer with DeepSpeed begins like this: the inner step comes first.
  make_folder("/b/checkpoint-5");
  make_folder("/b/checkpoint-5/global_step5");
  make_file("/b/checkpoint-5/global_step5/mp_rank_00_model_states.pt");
  EXPECT_FALSE(is_series("/b") || is_series("/b/checkpoint-5"));
  make_file("/b/checkpoint-5/trainer_state.json");
  EXPECT_TRUE(is_series("/b"));
  // A rename can complete the names that identify a checkpoint: of the file, and of the folder.
  make_folder("/c/step7");
  make_file("/c/step7/tmp");
  ASSERT_TRUE(tree().rename(at("/c/step7"), "tmp", at("/c/step7"), ".metadata", 0));
  EXPECT_TRUE(is_series("/c"));
  make_folder("/d/tmp-checkpoint-5");
  make_file("/d/tmp-checkpoint-5/trainer_state.json");
  EXPECT_FALSE(is_series("/d"));
  ASSERT_TRUE(tree().rename(at("/d"), "tmp-checkpoint-5", at("/d"), "checkpoint-5", 0));
  EXPECT_TRUE(is_series("/d"));
  expect_clean_fsck();
}

TEST_F(TreeTest, WhatMovesIntoAZeroStageFolderIsSwapState) {
  make_folder("/d");
  make_file("/d/f", std::string(300000, 'x'));
  EXPECT_EQ(tree().inode(at("/d/f")).value().flags & kSwap, 0U);
  ASSERT_TRUE(tree().rename(kRootInode, "d", kRootInode, "zero_stage_2", 0));
  EXPECT_NE(tree().inode(at("/zero_stage_2/f")).value().flags & kSwap, 0U);
  EXPECT_GE(store_->space().cow_reserve, 300000U);
  ASSERT_TRUE(tree().rename(kRootInode, "zero_stage_2", kRootInode, "d", 0));
  EXPECT_EQ(tree().inode(at("/d/f")).value().flags & kSwap, 0U);
  EXPECT_EQ(store_->space().cow_reserve, 0U);
}

// One change labels all that moves, and all other changes wait for it.
TEST_F(TreeTest, AFolderIsRefusedThatHoldsTooMuchToBecomeSwapStateAtOnce) {
  const InodeNumber folder = make_folder("/d");
  for (int count = 0; count < 16385; ++count) {
    ASSERT_TRUE(tree().make(folder, std::to_string(count), {S_IFLNK | 0777, 0, "x"}, user()));
  }
  const auto moved = tree().rename(kRootInode, "d", kRootInode, "zero_stage_2", 0);
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().errno_value(), EXDEV);
  EXPECT_EQ(tree().inode(folder).value().flags & kSwap, 0U);
  ASSERT_TRUE(tree().unlink(folder, "0"));
  ASSERT_TRUE(tree().rename(kRootInode, "d", kRootInode, "zero_stage_2", 0));
  EXPECT_NE(tree().inode(folder).value().flags & kSwap, 0U);
}

TEST_F(TreeTest, FoldersMayBeNestedAsDeepAsTheStackIsNot) {
  InodeNumber folder = make_folder("/d");
  for (int depth = 0; depth < 16000; ++depth) {
    const auto made = tree().make(folder, "f", {S_IFDIR | 0755, 0, {}}, user());
    ASSERT_TRUE(made) << made.error().message();
    folder = made.value().stat.st_ino;
  }
  ASSERT_TRUE(tree().rename(kRootInode, "d", kRootInode, "zero_stage_2", 0));
  EXPECT_NE(tree().inode(folder).value().flags & kSwap, 0U);
  EXPECT_LT(tree().path_of(folder).size(), 5000U) << "who makes such folders does not have their paths searched";
}

// The name that a record has is a hint.
TEST_F(TreeTest, APathIsThatOfANameThatIsThere) {
  const InodeNumber folder = make_folder("/d"), file = make_file("/d/first");
  EXPECT_EQ(tree().path_of(kRootInode), "/");
  ASSERT_TRUE(tree().link(file, folder, "second"));
  remove("/d/first");
  EXPECT_EQ(tree().path_of(file), "/d/second");
  ASSERT_TRUE(tree().rename(folder, "second", kRootInode, "third", 0));
  EXPECT_EQ(tree().path_of(file), "/third");
  ASSERT_TRUE(tree().make(folder, "link", {S_IFLNK | 0777, 0, "/third"}, user()));
  EXPECT_EQ(tree().path_of(at("/d/link")), "/d/link");
  ASSERT_TRUE(tree().rename(kRootInode, "d", kRootInode, "e", 0));
  EXPECT_EQ(tree().path_of(at("/e/link")), "/e/link");
  for (const InodeNumber old : {folder, file}) {  // an older version has made them
    Tree::Change change = tree().begin();
    InodeRecord record = tree().inode(old).value();
    record.name.clear();
    change.batch.put(old, record);
    ASSERT_TRUE(tree().commit(std::move(change)));
  }
  reopen();
  EXPECT_EQ(tree().path_of(folder), "/e");
  EXPECT_EQ(tree().path_of(file), "/third");
  remove("/e/link");
  ASSERT_TRUE(tree().remove_directory(kRootInode, "e"));
  EXPECT_EQ(tree().path_of(folder), "/(removed)");
}

TEST_F(TreeTest, ASeriesIsListedWhereNoStepOrSwapFolderIsAboveIt) {
  for (const char* folder : {"/a", "/a/b", "/a/b/c", "/zero_stage_2", "/a/checkpoint-1"}) make_folder(folder);
  make_folder("/a/b/c/step_1");
  make_file("/a/b/c/step_1/.metadata");
  make_file("/a/checkpoint-1/trainer_state.json");
  const auto expect_listed = [this](std::set<std::string> wanted) {
    const auto all = list_series(tree());
    ASSERT_TRUE(all);
    std::set<std::string> listed;
    for (const InodeNumber series : all.value()) listed.insert(tree().path_of(series));
    EXPECT_EQ(listed, wanted);
  };
  const InodeNumber b = at("/a/b");
  expect_listed({"/steps", "/a", "/a/b/c"});
  ASSERT_TRUE(set_pinned(*store_, at("/a/checkpoint-1"), false));  // it has the mark of a step
  for (const std::string parent : {"/zero_stage_2", "/a/checkpoint-1"}) {
    ASSERT_TRUE(tree().rename(at("/a"), "b", at(parent), "b", 0));
    expect_listed({"/steps", "/a"});
    ASSERT_TRUE(tree().rename(at(parent), "b", at("/a"), "b", 0));
    expect_listed({"/steps", "/a", "/a/b/c"});
  }
  ASSERT_TRUE(tree().take_out(at("/a"), "b", b));
  expect_listed({"/steps", "/a"});
}

}  // namespace
}  // namespace ckptfs::meta

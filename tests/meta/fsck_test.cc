#include "meta/care/fsck.h"

#include <gmock/gmock.h>

#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr InodeNumber kNobody = 999999;  // no inode has this number

// Damages the index in ways that only a fault of ours could. Recovery mends some of them at a start, so fsck looks at
// the store before.
class FsckTest : public ScratchStore {
 protected:
  void SetUp() override {
    ScratchStore::SetUp();
    if (IsSkipped()) return;
    folder_number_ = make_folder("/d");
    file_number_ = make_file("/d/f", "content");
    folder_record_ = tree().inode(folder_number_).value();
    file_record_ = tree().inode(file_number_).value();
  }
  std::vector<std::string> problems_after(const std::function<void(Batch&)>& damage) {
    Tree::Change change = tree().begin();
    damage(change.batch);
    EXPECT_TRUE(tree().commit(std::move(change)));
    close();
    const auto report = fsck(folder_);
    EXPECT_TRUE(report) << report.error().message();
    return report ? report.value().problems : std::vector<std::string>();
  }

  InodeNumber folder_number_ = 0, file_number_ = 0;
  InodeRecord folder_record_, file_record_;
};

TEST_F(FsckTest, AStoreWithoutFaultHasNone) {
  EXPECT_THAT(problems_after([](Batch&) {}), ElementsAre());
}

TEST_F(FsckTest, ANameThatLeadsNowhere) {
  EXPECT_THAT(problems_after([](Batch& batch) {
                batch.put_entry(kRootInode, "x", {kNobody, S_IFREG});
              }),
              ElementsAre(HasSubstr("'x' in inode 1: it leads to the missing inode 999999")));
}

TEST_F(FsckTest, ANameInNoFolder) {
  EXPECT_THAT(problems_after([this](Batch& batch) {
                batch.put_entry(kNobody, "x", {file_number_, S_IFREG});
              }),
              UnorderedElementsAre(HasSubstr("the folder is missing"), HasSubstr("link count is 1, it has 2 names")));
}

TEST_F(FsckTest, ANameOfAnotherKind) {
  EXPECT_THAT(problems_after([this](Batch& batch) {
                batch.put_entry(folder_number_, "f", {file_number_, S_IFLNK});
              }),
              ElementsAre(HasSubstr("its kind is not that of its inode")));
}

TEST_F(FsckTest, AFolderWithTwoNames) {
  const auto damage = [this](Batch& batch) {
    batch.put_entry(kRootInode, "d2", {folder_number_, S_IFDIR});
    InodeRecord root = batch.inode(kRootInode).value();
    ++root.nlink;
    batch.put(kRootInode, root);
  };
  EXPECT_THAT(problems_after(damage), ElementsAre(HasSubstr("a directory with 2 names")));
}

TEST_F(FsckTest, AFolderThatLiesElsewhere) {
  folder_record_.parent = kNobody;
  EXPECT_THAT(problems_after([this](Batch& batch) { batch.put(folder_number_, folder_record_); }),
              ElementsAre(HasSubstr("'d' in inode 1: its inode says it lies elsewhere")));
}

TEST_F(FsckTest, WrongLinkCounts) {
  folder_record_.nlink = 5;
  file_record_.nlink = 3;
  const auto damage = [this](Batch& batch) {
    batch.put(folder_number_, folder_record_);
    batch.put(file_number_, file_record_);
  };
  EXPECT_THAT(problems_after(damage), UnorderedElementsAre(HasSubstr("its link count is 5, should be 2"),
                                                           HasSubstr("its link count is 3, it has 1 names")));
}

TEST_F(FsckTest, ABlobThatTheIndexLacks) {
  file_record_.blob = kNobody;
  EXPECT_THAT(
      problems_after([this](Batch& batch) { batch.put(file_number_, file_record_); }),
      UnorderedElementsAre(HasSubstr("is not in the index"), HasSubstr("1 references are recorded, the tree has 0")));
}

TEST_F(FsckTest, AFrozenFileWithALiveBlob) {
  file_record_.flags |= kFrozen;
  EXPECT_THAT(problems_after([this](Batch& batch) { batch.put(file_number_, file_record_); }),
              ElementsAre(HasSubstr("is not frozen")));
}

TEST_F(FsckTest, WrongCountsOfReferences) {
  BlobRecord blob = store_->index().blob(file_record_.blob).value();
  blob.references = 2;
  EXPECT_THAT(problems_after([&](Batch& batch) { batch.put_blob(file_record_.blob, blob); }),
              ElementsAre(HasSubstr("2 references are recorded, the tree has 1")));
}

TEST_F(FsckTest, DigestsThatAreMissing) {
  BlobRecord blob = store_->index().blob(file_record_.blob).value();
  blob.digest.state = DigestState::taken;
  blob.digest.length = 7;
  EXPECT_THAT(problems_after([&](Batch& batch) { batch.put_blob(file_record_.blob, blob); }),
              ElementsAre(HasSubstr("digests of it are missing")));
}

TEST_F(FsckTest, StepRecords) {
  const auto damage = [this](Batch& batch) {
    batch.put_step(kNobody, {});
    StepRecord sealed;
    sealed.sealed = true;
    batch.put_step(folder_number_, sealed);
  };
  EXPECT_THAT(problems_after(damage), UnorderedElementsAre(HasSubstr("step record of the missing inode 999999"),
                                                           HasSubstr("disagree on whether it is sealed")));
}

TEST_F(FsckTest, ANumberThatWouldBeGivenAgain) {
  EXPECT_THAT(problems_after([](Batch& batch) { batch.put_number(kInodeLimitKey, 2); }),
              ElementsAre(HasSubstr("lies above the allotted numbers (2)")));
}

// The nameless blob may be what the damaged index has lost.
TEST_F(FsckTest, NoOrphanIsRemovedFromAStoreWithProblems) {
  const BlobNumber lost = file_record_.blob;
  const auto damage = [&](Batch& batch) {
    batch.erase_blob(lost, {});
    batch.put_entry(kRootInode, "x", {kNobody, S_IFREG});
  };
  EXPECT_THAT(problems_after(damage),
              UnorderedElementsAre(HasSubstr("is not in the index"), HasSubstr("the missing inode 999999")));
  const auto removed = remove_orphans(folder_);
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().errno_value(), EUCLEAN);
  EXPECT_EQ(::access((folder_ + "/blobs/" + Blobs::name(lost)).c_str(), F_OK), 0);
}

}  // namespace
}  // namespace ckptfs::meta

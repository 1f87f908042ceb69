#include "io/fault.h"
#include "meta/care/digests.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using RecoveryTest = ScratchStore;

std::string text_of(const std::string& path) {
  const auto text = io::read_file(path);
  return text ? text.value() : "";
}

TEST_F(RecoveryTest, AfterACrashEverythingCountsAsChanged) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  crash();
  open();
  EXPECT_FALSE(store_->recovery().clean);
  EXPECT_EQ(save("s2").value().cloned, 8U);
  reopen();
  EXPECT_TRUE(store_->recovery().clean);
  EXPECT_EQ(save("s3").value().cloned, 0U);
  expect_clean_fsck();
}

#ifdef CKPTFS_FAULT_POINTS
TEST_F(RecoveryTest, ClonesOfASaveThatWasNeverPublishedGo) {
  make_swap_state();
  const size_t before = blob_files();
  io::set_fault("save.before_publish", "error:5");
  EXPECT_EQ(save("s1").error().errno_value(), EIO);
  io::set_fault("save.before_publish", "");
  EXPECT_FALSE(tree().resolve("/steps/s1"));
  crash();
  open();
  close();  // finishes the reaper's work
  open();
  EXPECT_EQ(blob_files(), before);
  expect_clean_fsck();
}
#endif

TEST_F(RecoveryTest, SpareBlobsGo) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(spares_become(8));
  const size_t filled = blob_files();
  EXPECT_EQ(store_->blobs().list().value().size(), filled + 8);
  crash();
  open();
  EXPECT_EQ(store_->recovery().removed_blobs, 8U);
  close();  // finishes the reaper's work
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/blobs"), {}), static_cast<ptrdiff_t>(filled));
  expect_clean_fsck();
}

TEST_F(RecoveryTest, AMissingOrShortBlobIsDamageAndStopsNothing) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  make_file("/other", "fine");
  const std::string saved = "/steps/s1/offloaded_tensors/rank00/0_2.tensor.swp";
  const BlobNumber missing = tree().inode(at(kLive)).value().blob;
  const BlobNumber shorter = tree().inode(at(saved)).value().blob;
  crash();
  ASSERT_EQ(::unlink((folder_ + "/blobs/" + Blobs::name(missing)).c_str()), 0);
  ASSERT_EQ(::truncate((folder_ + "/blobs/" + Blobs::name(shorter)).c_str(), 10), 0);
  open();
  EXPECT_EQ(tree().damaged_files().size(), 2U);
  EXPECT_EQ(tree().open_blob(at(kLive), O_RDONLY).error().errno_value(), EIO);
  EXPECT_EQ(tree().open_blob(at(saved), O_RDONLY).error().errno_value(), EIO);
  EXPECT_EQ(tree().prepare_writing(at(kLive), user(), 0).error().errno_value(), EIO);
  EXPECT_EQ(read("/other"), "fine");
  close();
  const auto report = fsck(folder_);
  ASSERT_TRUE(report);
  EXPECT_EQ(report.value().problems.size(), 2U);
}

TEST_F(RecoveryTest, DamageIsFoundAgainAfterACleanEnd) {
  make_file("/f", "content");
  const BlobNumber blob = tree().inode(at("/f")).value().blob;
  crash();
  ASSERT_EQ(::unlink((folder_ + "/blobs/" + Blobs::name(blob)).c_str()), 0);
  open();
  ASSERT_EQ(tree().damaged_files().size(), 1U);
  reopen();
  EXPECT_EQ(tree().damaged_files().size(), 1U);
  remove("/f");
  reopen();
  reopen();
  EXPECT_TRUE(store_->recovery().clean);
}

// Earlier versions counted too few references where one change took two.
TEST_F(RecoveryTest, CountsThatAreTooLowAreRaised) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(save("s2"));
  const auto blob_of = [this](const std::string& name) {
    return tree().inode(at("/steps/s2/offloaded_tensors/rank00/" + name)).value().blob;
  };
  {
    Tree::Change change = tree().begin();
    BlobRecord low = store_->index().blob(blob_of("0_2.tensor.swp")).value();
    ASSERT_EQ(low.references, 2U);
    low.references = 1;
    change.batch.put_blob(blob_of("0_2.tensor.swp"), low);
    BlobRecord doomed = store_->index().blob(blob_of("exp_avg-0_2.tensor.swp")).value();
    doomed.references = 0;
    doomed.length = 0;  // like one of a failed save
    doomed.state = BlobState::doomed;
    change.batch.put_blob(blob_of("exp_avg-0_2.tensor.swp"), doomed);
    ASSERT_TRUE(tree().commit(std::move(change)));
  }
  reopen();
  EXPECT_EQ(store_->recovery().raised_references, 2U);
  remove("/steps/s1/offloaded_tensors/rank00/0_2.tensor.swp");
  remove("/steps/s1/offloaded_tensors/rank00/exp_avg-0_2.tensor.swp");
  reopen();
  EXPECT_EQ(store_->recovery().raised_references, 0U);
  EXPECT_EQ(read("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp"), read(kLive));
  EXPECT_EQ(read("/steps/s2/offloaded_tensors/rank00/exp_avg-0_2.tensor.swp").substr(1 << 20), "rank0");
  expect_clean_fsck();
}

TEST_F(RecoveryTest, ANamelessBlobWithContentStays) {
  make_file("/f", "named");
  const BlobNumber next = tree().inode(at("/f")).value().blob + 1;
  crash();
  std::filesystem::copy_file(folder_ + "/blobs/" + Blobs::name(next - 1), folder_ + "/blobs/" + Blobs::name(next));
  open();
  EXPECT_EQ(store_->recovery().orphan_blobs, 1U);
  make_file("/g", "does not meet it");
  EXPECT_EQ(blob_files(), 3U);
  close();
  EXPECT_EQ(fsck(folder_).value().orphans.size(), 1U);
  EXPECT_EQ(remove_orphans(folder_).value(), 1U);
  expect_clean_fsck();
}

// A store whose index and `durable` can be set aside and restored later, as an administrator might do.
class OlderIndexTest : public ScratchStore {
 protected:
  void TearDown() override {
    ScratchStore::TearDown();
    std::filesystem::remove_all(copy_);
  }
  void copy_index() {
    copy_ = folder_ + ".copy";
    std::filesystem::create_directory(copy_);
    std::filesystem::copy(folder_ + "/meta", copy_ + "/meta");
    std::filesystem::copy_file(folder_ + "/durable", copy_ + "/durable");
  }
  void put_index_back() {
    std::filesystem::remove_all(folder_ + "/meta");
    std::filesystem::copy(copy_ + "/meta", folder_ + "/meta");
    std::filesystem::copy_file(copy_ + "/durable", folder_ + "/durable",
                               std::filesystem::copy_options::overwrite_existing);
  }
  // Makes files with numbers beyond those that the older index has allotted.
  void make_newer_files() {
    make_swap_state();
    ASSERT_TRUE(save("s1"));
    for (int i = 0; i < 300; ++i) make_file("/newer" + std::to_string(i), "precious");
  }
  // Returns the blobs with content, by name.
  std::map<std::string, std::string> filled_blobs() const {
    std::map<std::string, std::string> filled;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/blobs")) {
      if (entry.file_size() > 0) filled[entry.path().filename()] = text_of(entry.path());
    }
    return filled;
  }
  void expect_nothing_deleted() {
    close();
    const auto before = filled_blobs();
    put_index_back();
    EXPECT_EQ(fsck(folder_).value().problems.size(), 1U);
    EXPECT_EQ(remove_orphans(folder_).error().errno_value(), EUCLEAN);
    open();
    EXPECT_TRUE(store_->recovery().older_index);
    EXPECT_EQ(store_->recovery().orphan_blobs, before.size() - 1);
    EXPECT_TRUE(filled_blobs() == before);
    EXPECT_EQ(read("/older"), "older");
    make_file("/after", "meets no blob that is there");
    EXPECT_EQ(filled_blobs().size(), before.size() + 1);
    reopen();
    EXPECT_FALSE(store_->recovery().older_index);
    EXPECT_EQ(filled_blobs().size(), before.size() + 1);
    close();
    EXPECT_EQ(remove_orphans(folder_).value(), before.size() - 1);
    open();
  }

  std::string copy_;
};

TEST_F(OlderIndexTest, OfAnUncleanEndDeletesNothing) {
  make_file("/older", "older");
  crash();
  copy_index();
  open();
  make_newer_files();
  expect_nothing_deleted();
}

TEST_F(OlderIndexTest, OfACleanEndDeletesNothing) {
  make_file("/older", "older");
  close();
  copy_index();
  open();
  make_newer_files();
  expect_nothing_deleted();
}

TEST_F(OlderIndexTest, ThatStillPromisesWhatWasPublishedDeletesNothing) {
  make_file("/older", "older");
  make_swap_state();
  ASSERT_TRUE(save("s0"));
  ASSERT_TRUE(spares_become(8));
  ASSERT_TRUE(tree().sync());
  copy_index();  // a copy of a store in use, like a snapshot
  write(kLive, "precious");
  ASSERT_TRUE(save("s1"));
  close();
  const auto before = filled_blobs();
  put_index_back();
  open();
  EXPECT_TRUE(store_->recovery().older_index);
  close();  // finishes the reaper's work
  for (const auto& [name, content] : before) EXPECT_TRUE(std::filesystem::exists(folder_ + "/blobs/" + name)) << name;
}

TEST_F(RecoveryTest, ALogThatReachedTheDiskWithAHoleIsReadUpToIt) {
  make_file("/durable", "precious");
  ASSERT_TRUE(tree().sync());
  const std::string durable = text_of(folder_ + "/durable");
  std::string log;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/meta")) {
    if (entry.path().extension() == ".log") log = entry.path();
  }
  const size_t begin = std::filesystem::file_size(log);
  const InodeNumber file = at("/durable");
  const auto name_of_xattr = [](int i) { return "user.x" + std::to_string(i); };
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(tree().set_xattr(file, name_of_xattr(i), std::string(3000, 'x'), 0));
  crash();
  {
    const auto fd = io::open_at(AT_FDCWD, log, O_WRONLY);
    ASSERT_TRUE(fd);
    const std::string hole(4096, '\0');
    ASSERT_TRUE(io::write_full(fd.value().get(), std::as_bytes(std::span(hole)), static_cast<off_t>(begin + 150000)));
    const auto behind = io::open_at(AT_FDCWD, folder_ + "/durable", O_WRONLY);
    ASSERT_TRUE(behind);
    ASSERT_TRUE(io::write_full(behind.value().get(), std::as_bytes(std::span(durable)), 0));
  }
  open();
  EXPECT_EQ(read("/durable"), "precious");
  const size_t left = tree().list_xattrs(file).value().size();
  EXPECT_GT(left, 40U);
  EXPECT_LT(left, 60U);
  for (size_t i = 0; i < left; ++i) EXPECT_TRUE(tree().xattr(file, name_of_xattr(static_cast<int>(i)))) << i;
}

TEST_F(RecoveryTest, ALostIndexIsRefusedAndNoBlobTouched) {
  make_file("/f", "precious");
  close();
  const std::string meta = folder_ + "/meta";
  std::filesystem::rename(meta, meta + ".aside");
  const auto missing = Store::open({folder_, 0, 0, true});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message().find("index is missing"), std::string::npos) << missing.error().message();
  std::filesystem::create_directory(meta);
  EXPECT_FALSE(Store::open({folder_, 0, 0, true}));
  std::filesystem::remove(meta);
  std::filesystem::rename(meta + ".aside", meta);
  open();
  EXPECT_EQ(read("/f"), "precious");
}

TEST_F(RecoveryTest, AnIndexThatLostItsDurableTailIsRefused) {
  for (int i = 0; i < 10; ++i) make_file("/f" + std::to_string(i), "precious");
  ASSERT_TRUE(tree().sync());
  crash();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/meta")) {
    if (entry.path().extension() == ".log") std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
  }
  const size_t before = std::distance(std::filesystem::directory_iterator(folder_ + "/blobs"), {});
  const auto refused = Store::open({folder_, 0, 0, true});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("nothing was changed"), std::string::npos) << refused.error().message();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/blobs"), {}), static_cast<ptrdiff_t>(before));
}

TEST_F(RecoveryTest, AnUnknownFormatIsRefusedWithBothVersions) {
  close();
  std::string config = text_of(folder_ + "/config.json");
  config.replace(config.find("\"format\": 4"), 11, "\"format\": 9");
  ASSERT_TRUE(io::replace_file(folder_ + "/config.json", config));
  const auto refused = Store::open({folder_, 0, 0, true});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("version 9"), std::string::npos);
  EXPECT_NE(refused.error().message().find("version 4"), std::string::npos);
}

TEST_F(RecoveryTest, ASecondDaemonIsRefused) {
  const auto second = Store::open({folder_, 0, 0, true});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().errno_value(), EBUSY);
  EXPECT_EQ(fsck(folder_).error().errno_value(), EBUSY);
}

TEST_F(RecoveryTest, AFileThatASurvivorWritesIsMarked) {
  make_file("/f", "data");
  const auto survivor = tree().open_blob(at("/f"), O_RDWR);
  ASSERT_TRUE(survivor);
  crash();
  open();
  EXPECT_NE(tree().inode(at("/f")).value().flags & kRecovered, 0U);
  const_cast<io::Fd&>(survivor.value()).reset();
  EXPECT_EQ(tree().inode(at("/f")).value().flags & kRecovered, 0U);
}

// After a crash, with more files than are inspected before the store is open.
class InspectionTest : public ScratchStore {
 protected:
  void open_uninspected() {
    auto store = Store::open({.folder = folder_, .create = false, .inspected_at_once = 0});
    ASSERT_TRUE(store) << store.error().message();
    store_ = std::move(store).value();
    ASSERT_FALSE(tree().is_inspected());
  }
  void inspect_all() {
    const auto inspected = store_->inspect([] { return true; });
    ASSERT_TRUE(inspected) << inspected.error().message();
    EXPECT_TRUE(tree().is_inspected());
  }
  void take_digests_of(const std::string& path) {
    EXPECT_EQ(take_digests(*store_, at(path), [](auto) { return true; }).value(), Taking::taken);
  }
  // Changes the file without the index's knowledge, like a write whose note in the index was lost in a power loss.
  void change_past_the_index(const std::string& path) {
    const BlobNumber blob = tree().inode(at(path)).value().blob;
    crash();
    ASSERT_TRUE(io::replace_file(folder_ + "/blobs/" + Blobs::name(blob), "other"));
  }
};

TEST_F(InspectionTest, UntilThenNoDigestOfALiveFileIsBelieved) {
  make_file("/f", "content");
  make_file("/g", "content");
  take_digests_of("/f");
  take_digests_of("/g");
  change_past_the_index("/f");
  open_uninspected();
  EXPECT_EQ(known_verdict(*store_, at("/f")).value(), Verdict::changed);
  EXPECT_EQ(known_verdict(*store_, at("/g")).value(), Verdict::changed);
  inspect_all();
  EXPECT_EQ(known_verdict(*store_, at("/f")).value(), Verdict::changed);
  EXPECT_EQ(known_verdict(*store_, at("/g")).value(), Verdict::ok);
}

TEST_F(InspectionTest, ASealBeforeItKeepsNoDigest) {
  make_folder("/steps/checkpoint-1");
  make_file("/steps/checkpoint-1/trainer_state.json", "content");
  take_digests_of("/steps/checkpoint-1/trainer_state.json");
  change_past_the_index("/steps/checkpoint-1/trainer_state.json");
  open_uninspected();
  ASSERT_TRUE(seal(*store_, at("/steps/checkpoint-1")));
  inspect_all();
  EXPECT_EQ(known_verdict(*store_, at("/steps/checkpoint-1/trainer_state.json")).value(), Verdict::changed);
}

TEST_F(InspectionTest, AShortFrozenBlobIsFoundByIt) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  const std::string saved = "/steps/s1/offloaded_tensors/rank00/0_2.tensor.swp";
  const BlobNumber blob = tree().inode(at(saved)).value().blob;
  crash();
  ASSERT_EQ(::truncate((folder_ + "/blobs/" + Blobs::name(blob)).c_str(), 10), 0);
  open_uninspected();
  EXPECT_EQ(tree().open_blob(at(saved), O_RDONLY).error().errno_value(), EIO);
  inspect_all();
  EXPECT_EQ(tree().damaged_files(), std::vector{at(saved)});
}

TEST_F(InspectionTest, AnEndBeforeItIsNotClean) {
  make_file("/f", "content");
  crash();
  open_uninspected();
  close();
  open_uninspected();
  EXPECT_FALSE(store_->recovery().clean);
  inspect_all();
  reopen();
  EXPECT_TRUE(store_->recovery().clean);
}

TEST_F(InspectionTest, UntilThenASurvivorMayWriteToEachFileThatWasThere) {
  make_file("/f", "data");
  crash();
  open_uninspected();
  make_file("/new", "data");
  EXPECT_NE(tree().inode(at("/f")).value().flags & kRecovered, 0U);
  EXPECT_EQ(tree().inode(at("/new")).value().flags & kRecovered, 0U);
  inspect_all();
  EXPECT_EQ(tree().inode(at("/f")).value().flags & kRecovered, 0U);
}

// STORE/frontiers of a version before 0.1.0: where copies ended that were under way, if the mode of their blobs says
// so.
TEST_F(ScratchStore, AStoreWithACopyThatAnOlderVersionLeftIsRefused) {
  make_file("/f", "content");
  const std::string blob = folder_ + "/blobs/" + Blobs::name(tree().inode(at("/f")).value().blob);
  const std::string frontiers = folder_ + "/frontiers";
  for (const bool crashed : {true, false}) {
    if (crashed) crash();
    if (!crashed) close();  // as after a copy of an older index was put back
    std::ofstream(frontiers) << "an older version's";
    ASSERT_EQ(::chmod(blob.c_str(), 01600), 0);
    const auto refused = Store::open({folder_, 1000, 1000, false});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("mount it with that version once"), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(frontiers));
    ASSERT_EQ(::chmod(blob.c_str(), 0600), 0);
    open();
    EXPECT_EQ(read("/f"), "content");
    EXPECT_FALSE(std::filesystem::exists(frontiers));
  }
}

}  // namespace
}  // namespace ckptfs::meta

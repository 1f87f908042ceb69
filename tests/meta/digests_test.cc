#include "meta/care/digests.h"

#include <fstream>
#include <functional>
#include <utility>

#include "io/clone.h"
#include "meta/care/maintenance.h"
#include "meta/care/neighbours.h"
#include "meta/care/sharing.h"
#include "meta/care/step_diff.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

constexpr const char* kFile = "/steps/global_step1/mp_rank_00_model_states.pt";
constexpr const char* kNext = "/steps/global_step2/mp_rank_00_model_states.pt";

bool go_on(std::chrono::nanoseconds) { return true; }

class DigestsTest : public ScratchStore {
 protected:
  void SetUp() override {
    ScratchStore::SetUp();
    if (IsSkipped()) return;
    make_folder("/steps/global_step1");
    make_folder("/steps/global_step2");
  }
  Taking take(const std::string& path, const Pause& pause = go_on) {
    const auto taking = take_digests(*store_, at(path), pause);
    EXPECT_TRUE(taking) << taking.error().message();
    return taking ? taking.value() : Taking::stopped;
  }
  // Runs `action` after the first chunk.
  Taking take_and_meanwhile(const std::string& path, const std::function<void()>& action) {
    bool done = false;
    return take(path, [&](std::chrono::nanoseconds) {
      if (!std::exchange(done, true)) action();
      return true;
    });
  }
  Verified verified(const std::string& path) {
    const auto verified = verify(*store_, at(path), 0, go_on);
    EXPECT_TRUE(verified) << verified.error().message();
    return verified ? verified.value() : Verified{};
  }
  BlobNumber blob_of(const std::string& path) { return tree().inode(at(path)).value().blob; }
  uint64_t shared_bytes(const std::string& path) {
    const auto fd = tree().open_blob(at(path), O_RDONLY);
    return io::summarize_extents(fd.value().get()).value().shared_bytes;
  }
  // Changes a byte in the blob itself, as a bad disk would, without the tree's knowledge.
  void flip_byte(const std::string& path, off_t offset) {
    const auto fd = store_->blobs().open(blob_of(path), O_RDWR);
    char byte = 0;
    ASSERT_EQ(::pread(fd.value().get(), &byte, 1, offset), 1);
    byte = static_cast<char>(~byte);
    ASSERT_EQ(::pwrite(fd.value().get(), &byte, 1, offset), 1);
  }
  // Returns a text of several chunks, all different; the last one is short.
  static std::string content(char seed) {
    std::string text(3 * kMiB + 1000, seed);
    for (size_t chunk = 0; chunk < 3; ++chunk) text[chunk * kMiB] = static_cast<char>('0' + chunk);
    return text;
  }
};

TEST_F(DigestsTest, TellWhetherAFileIsWhatItWas) {
  make_file(kFile, content('a'));
  EXPECT_EQ(verified(kFile).verdict, Verdict::undigested);
  ASSERT_EQ(take(kFile), Taking::taken);
  EXPECT_EQ(verified(kFile).verdict, Verdict::ok);
  EXPECT_EQ(verified(kFile).bytes, content('a').size());
  flip_byte(kFile, 2 * kMiB + 17);
  const Verified damaged = verified(kFile);
  EXPECT_EQ(damaged.verdict, Verdict::damaged);
  ASSERT_EQ(damaged.damaged.size(), 1U);
  EXPECT_EQ(damaged.damaged[0].offset, 2 * kMiB);
  EXPECT_EQ(damaged.damaged[0].length, kMiB);
}

TEST_F(DigestsTest, DamageIsRememberedUntilAWholeReadingFindsNone) {
  make_file(kFile, content('a'));
  ASSERT_EQ(take(kFile), Taking::taken);
  flip_byte(kFile, 5);
  EXPECT_EQ(verified(kFile).verdict, Verdict::damaged);
  reopen();
  EXPECT_EQ(store_->index().blob(blob_of(kFile)).value().digest.state, DigestState::damaged);
  flip_byte(kFile, 5);
  EXPECT_EQ(verified(kFile).verdict, Verdict::ok);
  EXPECT_EQ(store_->index().blob(blob_of(kFile)).value().digest.state, DigestState::taken);
}

// A long file is verified part by part. A part that is as it was says nothing of the others.
TEST_F(DigestsTest, AReadingInPartsForgetsNoDamage) {
  make_file(kFile, content('a'));
  ASSERT_EQ(take(kFile), Taking::taken);
  flip_byte(kFile, 5);
  const auto first = verify(*store_, at(kFile), 0, [](std::chrono::nanoseconds) { return false; });
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(first.value().verdict, Verdict::damaged);
  ASSERT_EQ(first.value().next, 1U);
  const auto rest = verify(*store_, at(kFile), first.value().next, go_on);
  ASSERT_TRUE(rest) << rest.error().message();
  EXPECT_EQ(rest.value().verdict, Verdict::ok);
  EXPECT_TRUE(rest.value().done);
  EXPECT_EQ(known_verdict(*store_, at(kFile)).value(), Verdict::damaged);
}

TEST_F(DigestsTest, ShortenedPastTheTreeIsDamage) {
  make_file(kFile, content('a'));
  ASSERT_EQ(take(kFile), Taking::taken);
  {
    const auto fd = store_->blobs().open(blob_of(kFile), O_RDWR);
    ASSERT_EQ(::ftruncate(fd.value().get(), 10), 0);
  }
  EXPECT_EQ(verified(kFile).verdict, Verdict::damaged);
}

TEST_F(DigestsTest, AFileThatWasOpenedForWritingHasChanged) {
  make_file(kFile, content('a'));
  ASSERT_EQ(take(kFile), Taking::taken);
  write(kFile, "x", 3);
  EXPECT_EQ(verified(kFile).verdict, Verdict::changed);
  ASSERT_EQ(take(kFile), Taking::taken);
  EXPECT_EQ(verified(kFile).verdict, Verdict::ok);
  ASSERT_TRUE(tree().truncate(at(kFile), 100));
  EXPECT_EQ(verified(kFile).verdict, Verdict::changed);
  ASSERT_EQ(take(kFile), Taking::taken);
  EXPECT_EQ(verified(kFile).bytes, 100U);
  expect_clean_fsck();
}

TEST_F(DigestsTest, AreNotTakenOfWhatIsWritten) {
  make_file(kFile, content('a'));
  open_files_.writers.insert(at(kFile));
  EXPECT_EQ(take(kFile), Taking::postponed);
  open_files_.writers.clear();
  {
    const auto survivor = store_->blobs().open(blob_of(kFile), O_RDWR);
    EXPECT_EQ(take(kFile), Taking::postponed);
  }
  EXPECT_EQ(take(kFile), Taking::taken);
}

TEST_F(DigestsTest, AreNotTakenOfHolesThatAreLongerThanTheDisk) {
  make_file(kFile);
  ASSERT_TRUE(tree().truncate(at(kFile), uint64_t{7} << 60));
  EXPECT_EQ(take(kFile), Taking::too_long);
  EXPECT_EQ(verified(kFile).verdict, Verdict::undigested);
}

TEST_F(DigestsTest, AWriteWhileTheyAreTakenThrowsThemAway) {
  make_file(kFile, content('a'));
  EXPECT_EQ(take_and_meanwhile(kFile, [&] { write(kFile, "x", 3); }), Taking::postponed);
  EXPECT_EQ(verified(kFile).verdict, Verdict::undigested);
}

TEST_F(DigestsTest, ACutWhileTheyAreTakenIsNoFailure) {
  make_file(kFile, content('a'));
  const auto cut = [&] {
    write(kFile, "x", 3);
    EXPECT_TRUE(tree().truncate(at(kFile), 0));
  };
  EXPECT_EQ(take_and_meanwhile(kFile, cut), Taking::postponed);
}

TEST_F(DigestsTest, AWriteAndASealWhileTheyAreTakenThrowThemAway) {
  make_file(kFile, content('a'));
  const auto write_and_seal = [&] {
    write(kFile, "x", 3);
    EXPECT_TRUE(seal(*store_, at("/steps/global_step1")));
  };
  EXPECT_EQ(take_and_meanwhile(kFile, write_and_seal), Taking::postponed);
  EXPECT_EQ(verified(kFile).verdict, Verdict::undigested);
  ASSERT_EQ(take(kFile), Taking::taken);
  EXPECT_EQ(verified(kFile).verdict, Verdict::ok);
}

TEST_F(DigestsTest, AWriteWhileAFileIsVerifiedIsNoDamage) {
  make_file(kFile, content('a'));
  ASSERT_EQ(take(kFile), Taking::taken);
  bool written = false;
  const auto result = verify(*store_, at(kFile), 0, [&](std::chrono::nanoseconds) {
    if (!written) write(kFile, "x", 2 * kMiB + 3);
    written = true;
    return true;
  });
  ASSERT_TRUE(result);
  EXPECT_EQ(result.value().verdict, Verdict::changed);
}

TEST_F(DigestsTest, AfterACrashAFileThatChangedSinceCountsAsChanged) {
  make_file(kFile, content('a'));
  make_file(kNext, content('b'));
  ASSERT_EQ(take(kFile), Taking::taken);
  ASSERT_EQ(take(kNext), Taking::taken);
  ASSERT_TRUE(tree().sync());
  const BlobNumber blob = blob_of(kNext);
  crash();
  {
    // A write whose note in the index was lost in a power loss.
    const io::Fd fd(::open((folder_ + "/blobs/" + Blobs::name(blob)).c_str(), O_WRONLY));
    ASSERT_EQ(::pwrite(fd.get(), "x", 1, 7), 1);
  }
  open();
  EXPECT_EQ(verified(kFile).verdict, Verdict::ok);
  EXPECT_EQ(verified(kNext).verdict, Verdict::changed);
}

TEST_F(DigestsTest, LongFilesHaveSeveralGroups) {
  make_file(kFile, "x");
  ASSERT_TRUE(tree().truncate(at(kFile), 600 * kMiB + 1));
  ASSERT_EQ(take(kFile), Taking::taken);
  EXPECT_EQ(verified(kFile).verdict, Verdict::ok);
  flip_byte(kFile, 300 * kMiB);
  const Verified damaged = verified(kFile);
  ASSERT_EQ(damaged.damaged.size(), 1U);
  EXPECT_EQ(damaged.damaged[0].offset, 300 * kMiB);
  const BlobNumber blob = blob_of(kFile);
  ASSERT_TRUE(tree().truncate(at(kFile), kMiB));
  ASSERT_EQ(take(kFile), Taking::taken);
  EXPECT_TRUE(store_->index().digests(blob, 0));
  EXPECT_FALSE(store_->index().digests(blob, 1));
  remove(kFile);
  reopen();
  EXPECT_FALSE(store_->index().digests(blob, 0));
}

// Returns how many bytes this process has read from block devices.
uint64_t read_from_devices() {
  std::ifstream file("/proc/self/io");
  for (std::string key; file >> key;) {
    uint64_t value = 0;
    file >> value;
    if (key == "read_bytes:") return value;
  }
  return 0;
}

TEST_F(DigestsTest, WhatIsInMemoryIsNotReadFromTheDiskAndTheRestOnce) {
  constexpr size_t kSize = 16 * kMiB;
  make_file(kFile, std::string(kSize, 'a'));
  make_file(kNext, std::string(kSize, 'b'));
  {
    const auto cold = tree().open_blob(at(kNext), O_RDONLY);
    ASSERT_EQ(::posix_fadvise(cold.value().get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  const uint64_t before = read_from_devices();
  ASSERT_EQ(take(kFile), Taking::taken);
  const uint64_t between = read_from_devices();
  ASSERT_EQ(take(kNext), Taking::taken);
  EXPECT_LT(between - before, kMiB);
  EXPECT_GE(read_from_devices() - between, kSize);
  EXPECT_LT(read_from_devices() - between, kSize + kMiB);
}

TEST_F(DigestsTest, ASealKeepsThem) {
  make_file(kFile, content('a'));
  ASSERT_EQ(take(kFile), Taking::taken);
  const auto sealed = seal(*store_, at("/steps/global_step1"));
  ASSERT_TRUE(sealed) << sealed.error().message();
  EXPECT_EQ(verified(kFile).verdict, Verdict::ok);
  expect_clean_fsck();
}

TEST_F(DigestsTest, EqualChunksAreShared) {
  std::string other = content('a');
  other[kMiB + 5] = 'z';
  make_file(kFile, content('a'));
  make_file(kNext, other);
  EXPECT_EQ(share_equal_chunks(*store_, blob_of(kFile), blob_of(kNext), go_on).value(), 0U);
  ASSERT_EQ(take(kFile), Taking::taken);
  ASSERT_EQ(take(kNext), Taking::taken);
  const auto shared = share_equal_chunks(*store_, blob_of(kFile), blob_of(kNext), go_on);
  ASSERT_TRUE(shared) << shared.error().message();
  EXPECT_EQ(shared.value(), other.size() - kMiB);
  EXPECT_GE(shared_bytes(kNext), 2 * kMiB);
  EXPECT_EQ(read(kNext), other);
  EXPECT_EQ(share_equal_chunks(*store_, blob_of(kFile), blob_of(kNext), go_on).value(), 0U) << "what is shared already";
  write(kNext, "y", 0);
  EXPECT_EQ(read(kFile), content('a'));
}

TEST_F(DigestsTest, WhatChangedSinceIsNotSharedEvenIfDigestsSaySo) {
  make_file(kFile, content('a'));
  make_file(kNext, content('a'));
  ASSERT_EQ(take(kFile), Taking::taken);
  ASSERT_EQ(take(kNext), Taking::taken);
  flip_byte(kNext, kMiB + 9);
  const auto shared = share_equal_chunks(*store_, blob_of(kFile), blob_of(kNext), go_on);
  ASSERT_TRUE(shared) << shared.error().message();
  EXPECT_EQ(shared.value(), content('a').size() - kMiB);
  EXPECT_NE(read(kNext), content('a'));
}

TEST_F(DigestsTest, DiffReadsOnlyWhatNothingTells) {
  std::string other = content('a');
  other[kMiB + 5] = 'z';
  make_file(kFile, content('a'));
  make_file(kNext, other + "more");
  const auto read_all = diff_files(*store_, at(kFile), at(kNext), 0, go_on);
  ASSERT_TRUE(read_all) << read_all.error().message();
  EXPECT_EQ(read_all.value().changed, 4096 + 4U);
  EXPECT_EQ(read_all.value().read, other.size());
  ASSERT_EQ(take(kFile), Taking::taken);
  ASSERT_EQ(take(kNext), Taking::taken);
  const auto read_none = diff_files(*store_, at(kFile), at(kNext), 0, go_on);
  EXPECT_EQ(read_none.value().read, 0U);
  EXPECT_EQ(read_none.value().changed, kMiB + 1000 + 4);
  EXPECT_EQ(diff_files(*store_, at(kFile), at(kFile), 0, go_on).value().changed, 0U);
}

TEST_F(DigestsTest, DiffTellsSharedBlocksFromOthers) {
  make_file(kFile, content('a'));
  make_file(kNext);
  {
    const auto from = tree().open_blob(at(kFile), O_RDONLY);
    const auto to = tree().open_blob(at(kNext), O_RDWR);
    ASSERT_TRUE(io::clone(from.value().get(), to.value().get()));
  }
  write(kNext, "z", 2 * kMiB + 5000);
  const auto diff = diff_files(*store_, at(kFile), at(kNext), 0, go_on);
  ASSERT_TRUE(diff) << diff.error().message();
  EXPECT_EQ(diff.value().changed, 4096U);
  EXPECT_LE(diff.value().read, kMiB);
}

TEST_F(DigestsTest, StepsWithTheSameTensorsAreFound) {
  for (const std::string step : {"/steps/global_step1", "/steps/global_step2"}) {
    make_file(step + "/mp_rank_00_model_states.pt", content('a'));
    make_file(step + "/trainer_state.json", step);
  }
  const InodeNumber step = at("/steps/global_step2");
  const InodeNumber before = at("/steps/global_step1");
  EXPECT_EQ(compare_tensors(*store_, step, before).value(), Sameness::unknown);
  ASSERT_EQ(take(kFile), Taking::taken);
  ASSERT_EQ(take(kNext), Taking::taken);
  EXPECT_EQ(compare_tensors(*store_, step, before).value(), Sameness::same);
  write(kNext, "z");
  ASSERT_EQ(take(kNext), Taking::taken);
  EXPECT_EQ(compare_tensors(*store_, step, before).value(), Sameness::different);
}

TEST_F(DigestsTest, WhatIsNoStepIsNoNeighbour) {
  make_folder("/steps/runs");
  make_folder("/steps/global_step3");
  const auto near = neighbours(tree(), at("/steps"), at("/steps/global_step2"));
  ASSERT_TRUE(near) << near.error().message();
  EXPECT_EQ(near.value().before, at("/steps/global_step1"));
  EXPECT_EQ(near.value().after, at("/steps/global_step3"));
}

TEST_F(DigestsTest, SavesThatChangedNothingAreTheSame) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(save("s2"));
  write("/zero_stage_3/optimizer/rank0/0_2.tensor.swp", "x");
  ASSERT_TRUE(save("s3"));
  EXPECT_EQ(compare_tensors(*store_, at("/steps/s2"), at("/steps/s1")).value(), Sameness::same);
  EXPECT_NE(compare_tensors(*store_, at("/steps/s3"), at("/steps/s2")).value(), Sameness::same);
}

class MaintenanceTest : public DigestsTest {
 protected:
  template <class Condition>
  static bool becomes(Condition&& condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) ::usleep(10000);
    return condition();
  }
  void make_file_of(uint32_t owner, const std::string& path, const std::string& content) {
    const auto made =
        tree().make(at(parent_of(path)), name_of(path), {S_IFREG | 0600, 0, {}}, {owner, owner, ::getpid()});
    ASSERT_TRUE(made) << made.error().message();
    write(path, content);
  }
  // Returns what all files share after a run of the maintenance that shares at least `bytes`.
  uint64_t shared_by_maintenance(uint64_t files, uint64_t bytes) {
    Maintenance maintenance(*store_, {.quiet = std::chrono::seconds(0), .scrub = std::chrono::seconds(0)});
    maintenance.start();
    EXPECT_TRUE(becomes([&] { return maintenance.report().digested_files == files; }));
    EXPECT_TRUE(becomes([&] { return maintenance.report().shared_bytes >= bytes; }));
    maintenance.stop();
    return maintenance.report().shared_bytes;
  }
};

TEST_F(MaintenanceTest, DigestsAndSharesWhatIsQuiet) {
  make_file(kFile, content('a'));
  make_file(kNext, content('a'));
  make_folder("/other");
  make_file("/other/copy", content('a'));
  make_swap_state();
  Maintenance maintenance(*store_, {.quiet = std::chrono::seconds(0), .scrub = std::chrono::seconds(0)});
  maintenance.start();
  EXPECT_TRUE(becomes([&] { return maintenance.report().shared_bytes == 2 * content('a').size(); }));
  EXPECT_TRUE(becomes([&] { return maintenance.report().identical.size() == 1; }));
  EXPECT_EQ(maintenance.report().digested_files, 3U) << "swap files are none of its";
  EXPECT_EQ(maintenance.report().digested_bytes, 3 * content('a').size());
  ASSERT_TRUE(save("s1"));
  EXPECT_TRUE(becomes([&] { return maintenance.report().digested_files == 3 + 8U; }));
  maintenance.stop();
  EXPECT_EQ(maintenance.report().failures, 0U);
  expect_clean_fsck();
}

// Whether blocks are shared can be seen, and would tell the one owner what the other's file holds. Files are looked at
// in the order in which they were made, so those that may share come last.
TEST_F(MaintenanceTest, SharesNoEqualFilesOfTwoOwners) {
  make_file_of(1000, "/private", content('s'));
  make_file_of(1001, "/guess", content('s'));
  make_file_of(1000, "/one", content('o'));
  make_file_of(1000, "/two", content('o'));
  EXPECT_EQ(shared_by_maintenance(4, content('o').size()), content('o').size());
  EXPECT_EQ(shared_bytes("/private"), 0U);
  EXPECT_EQ(shared_bytes("/guess"), 0U);
}

TEST_F(MaintenanceTest, SharesNoEqualChunksOfTwoOwnersSteps) {
  const std::string last = "/steps/global_step3/mp_rank_00_model_states.pt";
  make_folder("/steps/global_step3");
  make_file_of(1001, kFile, content('s') + "guess");
  make_file_of(1000, kNext, content('s') + "private");
  make_file_of(1000, last, content('s') + "private, later");
  EXPECT_EQ(shared_by_maintenance(3, 3 * kMiB), 3 * kMiB);
  EXPECT_EQ(shared_bytes(kFile), 0U);
}

TEST_F(MaintenanceTest, LeavesAloneWhatWasWrittenAMomentAgo) {
  make_file(kFile, content('a'));
  Maintenance maintenance(*store_, {.quiet = std::chrono::seconds(1000), .scrub = std::chrono::seconds(0)});
  maintenance.start();
  EXPECT_TRUE(becomes([&] { return maintenance.report().waiting_files == 1; }));
  maintenance.stop();
  EXPECT_EQ(maintenance.report().digested_files, 0U);
}

TEST_F(MaintenanceTest, TheScrubFindsDamage) {
  make_file(kFile, content('a'));
  make_file(kNext, content('b'));
  Maintenance maintenance(*store_, {.quiet = std::chrono::seconds(0), .scrub = std::chrono::seconds(1)});
  maintenance.start();
  EXPECT_TRUE(becomes([&] { return maintenance.report().scrubbed_bytes > 0; }));
  EXPECT_TRUE(maintenance.report().damaged.empty());
  flip_byte(kNext, 100);
  EXPECT_TRUE(becomes([&] { return maintenance.report().damaged == std::vector<std::string>{kNext}; }));
}

}  // namespace
}  // namespace ckptfs::meta

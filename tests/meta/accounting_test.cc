#include "meta/accounting/accounting.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <random>

#include "io/clone.h"
#include "io/extents.h"
#include "io/preallocated.h"
#include "meta/blobs/preallocation_reclaimer.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {

void PrintTo(const Usage& usage, std::ostream* out) {
  *out << "apparent " << usage.apparent << ", exclusive " << usage.exclusive << ", shared " << usage.shared;
}
bool operator==(const Usage& a, const Usage& b) {
  return a.apparent == b.apparent && a.exclusive == b.exclusive && a.shared == b.shared;
}

namespace {

// --- the sweep over the disk, on pieces without a disk

// Counts byte by byte.
std::vector<DiskUse> recount(const std::vector<DiskPiece>& pieces, const std::vector<std::vector<Owner>>& sets,
                             size_t owners) {
  std::vector<DiskUse> uses(owners);
  for (uint64_t at = 0; at < 1000; ++at) {
    uint64_t present = 0;
    for (const DiskPiece& piece : pieces) {
      if (piece.begin > at || piece.end <= at) continue;
      for (const Owner owner : sets[piece.owners]) present |= uint64_t{1} << owner;
    }
    for (Owner owner = 0; owner < owners; ++owner) {
      if ((present >> owner & 1) == 0) continue;
      ++(std::has_single_bit(present) ? uses[owner].exclusive : uses[owner].shared);
    }
  }
  return uses;
}

TEST(DiskSweep, CountsAsARecountDoesInWindowsOfAnySize) {
  const std::vector<std::vector<Owner>> sets{{0}, {1}, {2}, {0, 1}, {1, 2, 3}, {3}};
  std::minstd_rand dice(1);
  size_t most = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<DiskPiece> pieces(dice() % 60);
    for (DiskPiece& piece : pieces) {
      piece.begin = dice() % 20 * 10;
      piece.end = piece.begin + 1 + dice() % 100;
      piece.owners = static_cast<OwnerSet>(dice() % sets.size());
    }
    const auto wanted = recount(pieces, sets, 4);
    for (const size_t room : {size_t{1}, size_t{3}, size_t{8}, size_t{1000}}) {
      std::array<DiskTally, 1> tallies{DiskTally(sets, 4)};
      const auto windows = sweep_disk(
          [&](const VisitPiece& visit) -> Result<> {
            for (const DiskPiece& piece : pieces) visit(piece);
            return success();
          },
          room, tallies);
      ASSERT_TRUE(windows);
      most = std::max(most, windows.value());
      EXPECT_TRUE(room < 1000 || windows.value() == 1);
      for (size_t owner = 0; owner < 4; ++owner) {
        EXPECT_EQ(tallies[0].uses()[owner].exclusive, wanted[owner].exclusive) << "room " << room;
        EXPECT_EQ(tallies[0].uses()[owner].shared, wanted[owner].shared) << "room " << room;
      }
    }
  }
  EXPECT_GT(most, 5U);
}

// --- on a store

class AccountingTest : public ScratchStore {
 protected:
  Usage of(const std::string& path) { return of_all({{{at(path)}, 0}}).owners.front(); }
  Account of_all(const std::vector<AskedOwner>& owners) {
    auto account = store_->accounting().account(owners);
    EXPECT_TRUE(account) << account.error().message();
    return account ? std::move(account).value() : Account{std::vector<Usage>(owners.size()), {{}, {}}, {}};
  }
  // Computes the usage from the file's own extents and by a sweep over all files. The two must agree.
  Usage of_file(const std::string& path) {
    const auto usage = store_->accounting().usage_from_own_extents(at(path));
    EXPECT_TRUE(usage) << usage.error().message();
    const Usage swept = of(path);
    if (usage && usage.value()) {
      EXPECT_EQ(*usage.value(), swept) << path;
    }
    return swept;
  }
  io::Fd blob_of(const std::string& path) {
    auto fd = store_->blobs().open(tree().inode(at(path)).value().blob, O_RDWR);
    EXPECT_TRUE(fd);
    return std::move(fd).value();
  }
  // Shares blocks as copy_file_range does.
  void clone_file(const std::string& from, const std::string& to) {
    make_file(to);
    const auto cloned = io::clone(blob_of(from).get(), blob_of(to).get());
    ASSERT_TRUE(cloned) << cloned.error().message();
  }
  // Changes made within the current tick count as recent, so tests wait until they are past.
  static void wait_a_tick() { ::usleep(50000); }
};

TEST_F(AccountingTest, AFileOfItsOwnIsExclusive) {
  make_file("/f", std::string(kMiB + 5, 'x'));
  EXPECT_EQ(of_file("/f"), (Usage{kMiB + 5, kMiB + 4096, 0}));
  make_file("/empty");
  EXPECT_EQ(of_file("/empty"), (Usage{0, 0, 0}));
}

TEST_F(AccountingTest, ACloneSharesUntilItIsOverwritten) {
  make_folder("/a");
  make_folder("/b");
  make_file("/a/f", std::string(kMiB, 'x'));
  clone_file("/a/f", "/b/f");
  EXPECT_EQ(of_file("/a/f"), (Usage{kMiB, 0, kMiB}));
  EXPECT_EQ(of("/b"), (Usage{kMiB, 0, kMiB}));
  write("/b/f", std::string(256 << 10, 'y'), 256 << 10);
  EXPECT_EQ(of_file("/b/f"), (Usage{kMiB, 256 << 10, kMiB - (256 << 10)}));
  EXPECT_EQ(of("/a"), (Usage{kMiB, 256 << 10, kMiB - (256 << 10)}));
  // Together they use all of it.
  const Account both = of_all({{{at("/a")}, 0}, {{at("/b")}, 0}});
  EXPECT_EQ(both.groups.front(), (Usage{2 * kMiB, kMiB + (256 << 10), 0}));
  remove("/a/f");
  EXPECT_EQ(of("/b").shared, kMiB - (256 << 10)) << "the removed file's blocks stay until its blob has gone";
  reopen();
  EXPECT_EQ(of("/b"), (Usage{kMiB, kMiB, 0}));
  EXPECT_EQ(of("/a"), (Usage{0, 0, 0}));
}

TEST_F(AccountingTest, AHardLinkCountsOnceAndOnlyWhereAllOfItsNamesLie) {
  make_folder("/a");
  make_folder("/b");
  make_file("/a/f", std::string(kMiB, 'x'));
  ASSERT_TRUE(tree().link(at("/a/f"), at("/a"), "g"));
  EXPECT_EQ(of("/a"), (Usage{kMiB, kMiB, 0}));
  ASSERT_TRUE(tree().link(at("/a/f"), at("/b"), "h"));
  EXPECT_EQ(of("/a"), (Usage{kMiB, 0, kMiB}));
  EXPECT_EQ(of("/b"), (Usage{kMiB, 0, kMiB}));
  EXPECT_EQ(of_file("/b/h"), (Usage{kMiB, kMiB, 0})) << "the file with all of its names";
  EXPECT_EQ(of_all({{{at("/a"), at("/b")}, 0}}).owners.front(), (Usage{kMiB, kMiB, 0}));
  EXPECT_EQ(of_all({{{at("/a")}, 0}, {{at("/b")}, 0}}).groups.front(), (Usage{kMiB, kMiB, 0}));
}

TEST_F(AccountingTest, AFrozenBlobInTwoStepsBelongsToBoth) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(save("s2"));
  const uint64_t state = of("/steps/s1").apparent;
  EXPECT_GT(state, 8 * kMiB);
  EXPECT_EQ(of("/steps/s1").exclusive, 0U);
  EXPECT_EQ(of_file("/steps/s2/offloaded_tensors/rank00/0_2.tensor.swp").exclusive, 0U);
  for (const std::string rank : {"rank0", "rank1"}) {
    for (const std::string name : {"0_2", "exp_avg-0_2", "exp_avg_sq-0_2"}) {
      write("/zero_stage_3/optimizer/" + rank + "/" + name + ".tensor.swp", std::string(kMiB + 5, 'n'));
    }
  }
  const Account steps = of_all({{{at("/steps/s1")}, 0}, {{at("/steps/s2")}, 0}, {{at("/zero_stage_3")}, 1}});
  EXPECT_EQ(steps.owners[0].exclusive, 0U);
  EXPECT_EQ(steps.owners[0], steps.owners[1]);
  EXPECT_GE(steps.groups[0].exclusive, 6 * kMiB) << "what both steps have, and nobody else";
  EXPECT_EQ(steps.groups[0].apparent, 2 * state);
  EXPECT_EQ(steps.groups[0].exclusive + steps.groups[0].shared, steps.owners[0].shared);
  EXPECT_EQ(steps.groups[0].shared, steps.groups[1].shared);
}

TEST_F(AccountingTest, NestedOwnersAreApart) {
  make_folder("/a");
  make_folder("/a/inner");
  make_file("/a/f", std::string(kMiB, 'x'));
  make_file("/a/inner/g", std::string(2 * kMiB, 'x'));
  const Account account = of_all({{{at("/a")}, 0}, {{at("/a/inner")}, 1}, {{kRootInode}, 2}});
  EXPECT_EQ(account.owners[0], (Usage{kMiB, kMiB, 0}));
  EXPECT_EQ(account.owners[1], (Usage{2 * kMiB, 2 * kMiB, 0}));
  EXPECT_EQ(account.owners[2], (Usage{0, 0, 0}));
  EXPECT_EQ(of("/a"), (Usage{3 * kMiB, 3 * kMiB, 0}));
}

TEST_F(AccountingTest, HolesCountNothingAndPreallocationAll) {
  make_file("/f");
  write("/f", "end", 4 * kMiB);
  EXPECT_EQ(of_file("/f"), (Usage{4 * kMiB + 3, 4096, 0}));
  ASSERT_EQ(::fallocate(blob_of("/f").get(), FALLOC_FL_KEEP_SIZE, 8 * kMiB, kMiB), 0);
  EXPECT_EQ(of_file("/f"), (Usage{4 * kMiB + 3, 4096 + kMiB, 0}));
  ASSERT_EQ(::fallocate(blob_of("/f").get(), FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 8 * kMiB), 0);
  EXPECT_EQ(of_file("/f"), (Usage{4 * kMiB + 3, kMiB, 0}));
}

TEST_F(AccountingTest, WhatIsSharedWithinAFileIsItsOwn) {
  make_file("/f", std::string(kMiB, 'x'));
  {
    const io::Fd blob = blob_of("/f");
    ASSERT_TRUE(io::clone_range(blob.get(), 0, blob.get(), kMiB, kMiB));
  }
  EXPECT_EQ(of_file("/f"), (Usage{2 * kMiB, kMiB, 0}));
  EXPECT_FALSE(store_->accounting().usage_from_own_extents(at("/f")).value());
  clone_file("/f", "/g");
  EXPECT_EQ(of_file("/f"), (Usage{2 * kMiB, 0, kMiB}));
  EXPECT_EQ(of_all({{{at("/f"), at("/g")}, 0}}).owners.front(), (Usage{4 * kMiB, kMiB, 0}));
}

TEST_F(AccountingTest, WhatNothingNamesIsNobodys) {
  make_file("/f", std::string(kMiB, 'x'));
  clone_file("/f", "/g");
  const auto dropped = tree().unlink(kRootInode, "g");  // still open somewhere
  ASSERT_TRUE(dropped);
  const Account account = of_all({{{kRootInode}, 0}});
  EXPECT_EQ(account.owners.front(), (Usage{kMiB, 0, kMiB}));
  EXPECT_EQ(account.nobody, (Usage{kMiB, 0, kMiB}));
  ASSERT_TRUE(store_->blobs().create(12345));
  EXPECT_EQ(of_all({{{kRootInode}, 0}}).nobody, account.nobody);
  tree().reap(dropped.value().inode);
}

// Makes a file of many extents, of which every other one is shared.
void make_comb(const io::Fd& from, const io::Fd& to, uint64_t teeth) {
  constexpr uint64_t kTooth = 4096;
  for (uint64_t i = 0; i < teeth; ++i) {
    const auto offset = static_cast<off_t>(2 * i * kTooth);
    ASSERT_TRUE(io::clone_range(from.get(), offset, to.get(), offset, kTooth));
  }
}

TEST_F(AccountingTest, ATinyWindowTellsTheSame) {
  make_folder("/a");
  make_folder("/b");
  make_file("/a/f", std::string(2 * kMiB, 'x'));
  make_file("/b/f", std::string(2 * kMiB, 'y'));
  make_file("/b/g", std::string(kMiB, 'z'));
  make_comb(blob_of("/a/f"), blob_of("/b/f"), 200);
  const std::vector<AskedOwner> owners{{{at("/a")}, 0}, {{at("/b")}, 0}, {{kRootInode}, 1}};
  const Account wanted = of_all(owners);
  EXPECT_EQ(wanted.owners[0], (Usage{2 * kMiB, 2 * kMiB - 200 * 4096, 200 * 4096}));
  EXPECT_EQ(wanted.owners[1], (Usage{3 * kMiB, 3 * kMiB - 200 * 4096, 200 * 4096}));
  EXPECT_EQ(store_->accounting().windows(), 1U);
  for (const size_t pieces : {2, 16, 100}) {
    for (const size_t cache : {size_t{0}, size_t{1} << 20}) {
      Accounting small(tree(), store_->index(), store_->blobs(), [](InodeNumber) { return false; }, {pieces, cache});
      const auto account = small.account(owners);
      ASSERT_TRUE(account);
      EXPECT_GT(small.windows(), 2U);
      EXPECT_EQ(account.value().owners, wanted.owners);
      EXPECT_EQ(account.value().groups, wanted.groups);
      EXPECT_LE(small.cache_counts().bytes, cache);
    }
  }
}

// --- the extent cache

TEST_F(AccountingTest, WhatDidNotChangeIsNotReadAgain) {
  make_swap_state();
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(spares_become(8));
  wait_a_tick();
  const Usage before = of("/steps/s1");
  const auto first = store_->accounting().cache_counts();
  EXPECT_EQ(of("/steps/s1"), before);
  const auto second = store_->accounting().cache_counts();
  EXPECT_EQ(second.reads, first.reads);
  EXPECT_GT(second.hits, first.hits + 15);
}

TEST_F(AccountingTest, ARewriteIsSeenAtOnce) {
  make_folder("/a");
  make_file("/a/f", std::string(kMiB, 'x'));
  clone_file("/a/f", "/g");
  wait_a_tick();
  for (uint64_t i = 1; i <= 64; ++i) {
    EXPECT_EQ(of("/a").exclusive, (i - 1) * 4096);
    write("/a/f", std::string(4096, 'y'), static_cast<off_t>((i - 1) * 8192));
    EXPECT_EQ(of("/a").exclusive, i * 4096);
    EXPECT_EQ(of("/a").exclusive, i * 4096);
    if (i % 16 == 0) wait_a_tick();
  }
}

TEST_F(AccountingTest, AFileThatIsOpenForWritingIsReadEachTime) {
  make_file("/f", std::string(kMiB, 'x'));
  wait_a_tick();
  open_files_.writers.insert(at("/f"));
  of("/f");
  const auto first = store_->accounting().cache_counts();
  of("/f");
  EXPECT_GT(store_->accounting().cache_counts().reads, first.reads);
}

TEST_F(AccountingTest, DirtyPagesAreWrittenFirst) {
  make_file("/f");
  const io::Fd blob = blob_of("/f");
  const std::string content(kMiB, 'x');
  ASSERT_TRUE(io::write_full(blob.get(), std::as_bytes(std::span(content)), 0));
  EXPECT_EQ(of("/f"), (Usage{kMiB, kMiB, 0}));
}

// A file's stat does not change when its blocks become shared, so the code that shares them must report it.
TEST_F(AccountingTest, SharedBlocksAreForgotten) {
  make_file("/f", std::string(kMiB, 'x'));
  make_file("/g", std::string(kMiB, 'x'));
  wait_a_tick();
  EXPECT_EQ(of("/g"), (Usage{kMiB, kMiB, 0}));
  const auto shared = io::dedupe_range(blob_of("/f").get(), 0, blob_of("/g").get(), 0, kMiB);
  ASSERT_TRUE(shared);
  ASSERT_EQ(shared.value(), kMiB);
  store_->accounting().forget(tree().inode(at("/g")).value().blob);
  EXPECT_EQ(of_file("/g"), (Usage{kMiB, 0, kMiB}));
}

// --- preallocation

uint64_t used_bytes(const Store& store) {
  const SpaceReport space = store.space();
  return space.total - space.raw_free;
}

TEST_F(AccountingTest, WhatCopyOnWriteTookAheadIsGivenBack) {
  constexpr uint64_t kFiles = 8;
  const auto name = [](uint64_t i) { return "/zero_stage_3/optimizer/rank0/" + std::to_string(i) + ".tensor.swp"; };
  make_folder("/zero_stage_3");
  make_folder("/zero_stage_3/optimizer");
  make_folder("/zero_stage_3/optimizer/rank0");
  for (uint64_t i = 0; i < kFiles; ++i) make_file(name(i), std::string(4 * kMiB, 'x'));
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(spares_become(kFiles));
  const uint64_t before = used_bytes(*store_);
  for (uint64_t i = 0; i < kFiles; ++i) write(name(i), std::string(4096, 'y'));
  EXPECT_GT(used_bytes(*store_), before + kFiles * kMiB) << "whole extent hints";
  ASSERT_TRUE(io::syncfs_fd(store_->blobs().folder_fd()));
  ASSERT_TRUE(io::free_preallocated(store_->blobs().folder_fd(), io::OpenFilesToo::no));
  EXPECT_LT(used_bytes(*store_), before + kMiB);
}

TEST_F(AccountingTest, NothingIsRefusedForWantOfSpaceThatWasTakenAhead) {
  constexpr uint64_t kFiles = 6;
  const auto name = [](uint64_t i) { return "/zero_stage_3/optimizer/rank0/" + std::to_string(i) + ".tensor.swp"; };
  make_folder("/zero_stage_3");
  make_folder("/zero_stage_3/optimizer");
  make_folder("/zero_stage_3/optimizer/rank0");
  for (uint64_t i = 0; i < kFiles; ++i) make_file(name(i), std::string(16 * kMiB, 'x'));
  ASSERT_TRUE(save("s1"));
  ASSERT_TRUE(spares_become(kFiles));
  const auto take_ahead = [&] {
    for (uint64_t i = 0; i < kFiles; ++i) write(name(i), std::string(4096, 'y'), 4096);
  };
  take_ahead();
  const uint64_t free = store_->space().free;
  const uint64_t cow_reserve = store_->space().cow_reserve;
  EXPECT_GT(cow_reserve, kFiles * 8 * kMiB);
  // The request needs half of what is preallocated.
  const uint64_t others = free + kFiles * 8 * kMiB - tree().inode(at(name(0))).value().cow_reserve;
  const auto prepared = tree().prepare_writing(at(name(0)), user(), others);
  EXPECT_TRUE(prepared) << prepared.error().message();

  ASSERT_TRUE(save("s2"));
  ASSERT_TRUE(spares_become(kFiles));
  take_ahead();
  make_file("/filler");
  const uint64_t leave = kFiles * 12 * kMiB;  // after a save the COW reserve is 16 MiB a file
  ASSERT_GT(store_->space().free, leave);
  ASSERT_EQ(::fallocate(blob_of("/filler").get(), 0, 0, static_cast<off_t>(store_->space().free - leave)), 0);
  ASSERT_LT(store_->space().free, kFiles * 16 * kMiB);
  const auto saved = save("s3");
  EXPECT_TRUE(saved) << saved.error().message();
}

TEST_F(AccountingTest, PreallocationIsReclaimedWhereSomethingWasWritten) {
  make_folder("/zero_stage_3");
  make_file("/zero_stage_3/f", std::string(16 * kMiB, 'x'));
  clone_file("/zero_stage_3/f", "/g");
  write("/zero_stage_3/f", std::string(4096, 'y'));
  ASSERT_TRUE(io::syncfs_fd(store_->blobs().folder_fd()));
  const uint64_t before = used_bytes(*store_);
  Space space(store_->blobs().folder_fd());
  const PreallocationReclaimer preallocation_reclaimer(space, std::chrono::milliseconds(1), [] {});
  ::usleep(50000);
  EXPECT_GT(used_bytes(*store_), before - kMiB) << "nothing was written that it knows of";
  space.note_written();
  for (int i = 0; i < 1000 && used_bytes(*store_) > before - 8 * kMiB; ++i) ::usleep(10000);
  EXPECT_LT(used_bytes(*store_), before - 8 * kMiB);
}

}  // namespace
}  // namespace ckptfs::meta

#include "gpu/read_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace ckptfs::gpu {
namespace {

constexpr uint64_t kPlannedBlock = 4096;
constexpr uint64_t kPlannedSlot = 8 * kPlannedBlock;

// Targets are never accessed, so any address will do.
std::byte* target(uintptr_t at) { return reinterpret_cast<std::byte*>(at); }

TEST(ReadPlan, NothingWanted) {
  EXPECT_TRUE(plan_reads({}, kPlannedSlot, kPlannedBlock).reads.empty());
  EXPECT_TRUE(plan_reads({{0, 100, 0, target(1)}}, kPlannedSlot, kPlannedBlock).reads.empty());
}

TEST(ReadPlan, WhatLiesCloseIsOneRead) {
  const auto plan = plan_reads({{0, 4200, 100, target(1)}, {0, 10, 100, target(2)}}, kPlannedSlot, kPlannedBlock);
  ASSERT_EQ(plan.reads.size(), 1U);
  EXPECT_EQ(plan.reads[0].begin, 0U);
  EXPECT_EQ(plan.reads[0].end, 2 * kPlannedBlock);
  EXPECT_EQ(plan.reads[0].least, 4300U);
}

uint64_t bytes_read(const ReadPlan& plan) {
  uint64_t bytes = 0;
  for (const PlannedRead& read : plan.reads) bytes += read.least;
  return bytes;
}

// A rank that loads a column shard: of each row, so many bytes of so many.
uint64_t read_of_columns(uint64_t width, uint64_t row) {
  std::vector<Wanted> wanted;
  for (uint64_t number = 0; number < 1000; ++number) wanted.push_back({0, number * row, width, target(1 + number)});
  return bytes_read(plan_reads(std::move(wanted), 256 * kPlannedBlock, kPlannedBlock));
}

TEST(ReadPlan, OfColumnsLittleMoreThanTheWantedOnesIsRead) {
  constexpr uint64_t kKib = 1024;
  for (const uint64_t parts : {2, 4, 8}) {
    for (const uint64_t width : {8 * kKib, 16 * kKib, 64 * kKib}) {
      EXPECT_LE(read_of_columns(width, parts * width), 1000 * width * 11 / 10) << width << " of " << parts;
    }
  }
  EXPECT_EQ(read_of_columns(kKib, 2 * kKib), 1999 * kKib) << "a gap within a block costs nothing";
}

// Between long ranges a gap is read along; between short ones it would be most of what is read.
TEST(ReadPlan, ALargerGapIsReadOnlyBesideMuchThatIsWanted) {
  constexpr uint64_t kLarge = 2 << 20, kGap = 60 << 10;
  const auto reads = [](uint64_t size, uint64_t gap) {
    return plan_reads({{0, 0, size, target(1)}, {0, size + gap, size, target(2)}}, 16 << 20, kPlannedBlock)
        .reads.size();
  };
  EXPECT_EQ(reads(kLarge, kGap), 1U);
  EXPECT_EQ(reads(kLarge, 2 * kGap), 2U);
  EXPECT_EQ(reads(kLarge / 8, kGap), 2U);
  EXPECT_EQ(reads(100, 8 << 10), 2U);
}

TEST(ReadPlan, NoBlockIsReadTwice) {
  constexpr uint64_t kBlock = 1 << 20;
  std::vector<Wanted> wanted;
  for (uint64_t at = 0; at < 100; ++at) wanted.push_back({0, at * 300'000, 100, target(1 + at)});
  const auto plan = plan_reads(wanted, 16 * kBlock, kBlock);
  uint64_t end = 0;
  for (const PlannedRead& read : plan.reads) {
    EXPECT_GE(read.begin, end);
    end = read.end;
  }
  EXPECT_EQ(plan.reads.size(), 2U) << "29 blocks, and none lies between two that are wanted";
  EXPECT_EQ(plan_reads({{0, 0, 1, target(1)}, {0, 2 * kBlock, 1, target(2)}}, 16 * kBlock, kBlock).reads.size(), 2U);
}

TEST(ReadPlan, WhatLiesFarApartOrInAnotherFileIsNot) {
  const auto plan = plan_reads({{1, 0, 10, target(1)}, {0, 0, 10, target(2)}, {0, 1 << 20, 10, target(3)}},
                               kPlannedSlot, kPlannedBlock);
  ASSERT_EQ(plan.reads.size(), 3U);
  EXPECT_EQ(plan.reads[1].begin, uint64_t{1} << 20);
  EXPECT_EQ(plan.reads[2].file, 1U);
}

TEST(ReadPlan, WhatIsAloneIsReadByItself) {
  const uint64_t size = kPlannedSlot + 5;
  const auto plan =
      plan_reads({{0, 10, 100, target(1)}, {0, 110, size, target(2), true}, {0, 110 + size, 100, target(3)}},
                 kPlannedSlot, kPlannedBlock);
  ASSERT_EQ(plan.reads.size(), 4U);
  EXPECT_EQ(plan.reads[0].least, 110U);
  EXPECT_EQ(plan.reads[1].begin, 110U);
  EXPECT_EQ(plan.reads[1].end, 110 + kPlannedSlot);
  EXPECT_EQ(plan.reads[2].begin, 110 + kPlannedSlot);
  EXPECT_EQ(plan.reads[2].end, 110 + size);
  EXPECT_EQ(plan.reads[3].begin, kPlannedSlot);
}

TEST(ReadPlan, ReadsEndWhereChunksDo) {
  constexpr uint64_t kChunk = 2 * kPlannedBlock, kFile = 100 * kPlannedBlock + 50;
  const auto plan = plan_reads({{0, kPlannedBlock + 7, kFile - kPlannedBlock - 7, target(1)}}, kPlannedSlot,
                               kPlannedBlock, {{kChunk, kFile}});
  ASSERT_FALSE(plan.reads.empty());
  EXPECT_EQ(plan.reads.front().begin, 0U) << "the rest of the first chunk costs little";
  EXPECT_EQ(plan.reads.back().begin + plan.reads.back().least, kFile);
  for (size_t at = 1; at < plan.reads.size(); ++at) {
    EXPECT_EQ(plan.reads[at].begin, plan.reads[at - 1].end);
    EXPECT_EQ(plan.reads[at].begin % kChunk, 0U);
    EXPECT_LE(plan.reads[at].end - plan.reads[at].begin, kPlannedSlot);
  }
}

TEST(ReadPlan, TheRestOfAChunkIsReadOnlyIfItCostsLittle) {
  constexpr uint64_t kMib = 1 << 20;
  const auto bytes = [](uint64_t offset, uint64_t size) {
    return bytes_read(plan_reads({{0, offset, size, target(1)}}, 8 * kMib, kPlannedBlock, {{kMib, 100 * kMib}}));
  };
  EXPECT_EQ(bytes(kMib / 2, 8 * kMib), 8 * kMib) << "half a chunk at either end";
  EXPECT_EQ(bytes(8192, kMib - 8192), kMib);
  EXPECT_EQ(bytes(0, kMib - 8192), kMib);
  EXPECT_EQ(bytes(8192, 8192), 8192U);
}

// Every wanted byte is loaded once, from its place in the file. Reads are aligned and sorted, except those of ranges
// that are alone. None is longer than a slot.
TEST(ReadPlan, BringsEachByteToEachTargetOnce) {
  std::mt19937_64 random(20261122);
  const auto below = [&](uint64_t most) { return random() % most; };
  for (int round = 0; round < 60; ++round) {
    std::vector<Wanted> wanted;
    uintptr_t next = 1;
    for (uint64_t count = below(40); count > 0; --count) {
      const uint64_t size = below(4) == 0 ? below(5 * kPlannedSlot) : below(300);
      wanted.push_back({static_cast<uint32_t>(below(3)), below(20 * kPlannedSlot), size, target(next), below(4) == 0});
      next += size;
    }
    std::vector<std::pair<uint32_t, uint64_t>> expected(next), found(next, {99, 0});
    for (const Wanted& one : wanted) {
      for (uint64_t at = 0; at < one.size; ++at) {
        expected[reinterpret_cast<uintptr_t>(one.target) + at] = {one.file, one.offset + at};
      }
    }
    expected[0] = found[0];
    const std::vector<Chunks> chunks(round % 2 == 0 ? 2 : 0, {2 * kPlannedBlock, 40 * kPlannedSlot});
    const auto plan = plan_reads(wanted, kPlannedSlot, kPlannedBlock, chunks);
    uint64_t landed = 0;
    for (size_t at = 0; at < plan.reads.size(); ++at) {
      const PlannedRead& read = plan.reads[at];
      const bool alone = plan.wanted[read.first].alone;
      EXPECT_TRUE(alone || (read.begin % kPlannedBlock == 0 && read.end % kPlannedBlock == 0));
      EXPECT_TRUE(!alone || read.last == read.first + 1);
      EXPECT_GT(read.end, read.begin);
      EXPECT_LE(read.end - read.begin, kPlannedSlot);
      EXPECT_LE(read.least, read.end - read.begin);
      if (at > 0 && !alone && !plan.wanted[plan.reads[at - 1].first].alone) {
        EXPECT_LE(std::pair(plan.reads[at - 1].file, plan.reads[at - 1].begin), std::pair(read.file, read.begin));
      }
      ASSERT_TRUE(for_each_landing(plan, read, [&](size_t which, const Landing& landing) -> Result<> {
        EXPECT_LE(landing.at + landing.size, read.least);
        EXPECT_EQ(plan.wanted[which].file, read.file);
        landed += landing.size;
        for (uint64_t byte = 0; byte < landing.size; ++byte) {
          found[reinterpret_cast<uintptr_t>(landing.target) + byte] = {read.file, read.begin + landing.at + byte};
        }
        return success();
      }));
    }
    EXPECT_EQ(landed, next - 1);
    ASSERT_TRUE(found == expected) << "round " << round;
  }
}

}  // namespace
}  // namespace ckptfs::gpu

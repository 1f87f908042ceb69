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
  const auto plan = plan_reads({{0, 9000, 100, target(1)}, {0, 10, 100, target(2)}}, kPlannedSlot, kPlannedBlock);
  ASSERT_EQ(plan.reads.size(), 1U);
  EXPECT_EQ(plan.reads[0].begin, 0U);
  EXPECT_EQ(plan.reads[0].end, 3 * kPlannedBlock);
  EXPECT_EQ(plan.reads[0].least, 9100U);
}

TEST(ReadPlan, WhatLiesFarApartOrInAnotherFileIsNot) {
  const auto plan = plan_reads({{1, 0, 10, target(1)}, {0, 0, 10, target(2)}, {0, 1 << 20, 10, target(3)}},
                               kPlannedSlot, kPlannedBlock);
  ASSERT_EQ(plan.reads.size(), 3U);
  EXPECT_EQ(plan.reads[1].begin, uint64_t{1} << 20);
  EXPECT_EQ(plan.reads[2].file, 1U);
}

// Every wanted byte is loaded once, from its place in the file. Reads are aligned, sorted, and no longer than a slot.
TEST(ReadPlan, BringsEachByteToEachTargetOnce) {
  std::mt19937_64 random(20261122);
  const auto below = [&](uint64_t most) { return random() % most; };
  for (int round = 0; round < 60; ++round) {
    std::vector<Wanted> wanted;
    uintptr_t next = 1;
    for (uint64_t count = below(40); count > 0; --count) {
      const uint64_t size = below(4) == 0 ? below(5 * kPlannedSlot) : below(300);
      wanted.push_back({static_cast<uint32_t>(below(3)), below(20 * kPlannedSlot), size, target(next)});
      next += size;
    }
    std::vector<std::pair<uint32_t, uint64_t>> expected(next), found(next, {99, 0});
    for (const Wanted& one : wanted) {
      for (uint64_t at = 0; at < one.size; ++at) {
        expected[reinterpret_cast<uintptr_t>(one.target) + at] = {one.file, one.offset + at};
      }
    }
    expected[0] = found[0];
    const auto plan = plan_reads(wanted, kPlannedSlot, kPlannedBlock);
    uint64_t landed = 0;
    for (size_t at = 0; at < plan.reads.size(); ++at) {
      const PlannedRead& read = plan.reads[at];
      EXPECT_EQ(read.begin % kPlannedBlock, 0U);
      EXPECT_EQ(read.end % kPlannedBlock, 0U);
      EXPECT_GT(read.end, read.begin);
      EXPECT_LE(read.end - read.begin, kPlannedSlot);
      EXPECT_LE(read.least, read.end - read.begin);
      if (at > 0) {
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

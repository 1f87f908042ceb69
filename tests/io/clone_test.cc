#include "io/clone.h"
#include "io/extents.h"
#include "io/sharing_probe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::content_of_file;
using testing::pattern;

constexpr size_t kMiB = size_t{1} << 20;
constexpr uint64_t kUnit = 128 << 10;

class CloneTest : public testing::XfsTest {
 protected:
  static ExtentSummary extents(const Fd& fd) {
    const auto summary = summarize_extents(fd.get());
    EXPECT_OK(summary);
    return summary ? summary.value() : ExtentSummary{};
  }
  static uint64_t allocation(const Fd& fd, uint64_t size, uint64_t unit = kUnit) {
    EXPECT_OK(fdatasync_fd(fd.get()));
    const auto bytes = overwrite_allocation(fd.get(), size, unit);
    EXPECT_OK(bytes);
    return bytes ? bytes.value() : ~uint64_t{0};
  }
};

TEST_F(CloneTest, SharesAndStaysAsItWas) {
  const auto before = pattern(4 * kMiB, 1);
  const Fd from = file("from", before);
  const Fd to = file("to", pattern(100, 2));
  EXPECT_EQ(extents(from).shared_bytes, 0u);
  ASSERT_OK(clone(from.get(), to.get()));
  EXPECT_EQ(extents(from).shared_bytes, 4 * kMiB);
  EXPECT_EQ(extents(to).shared_bytes, 4 * kMiB);
  EXPECT_EQ(extents(to).mapped_bytes, 4 * kMiB);

  ASSERT_OK(write_full(from.get(), pattern(kMiB, 3), kMiB));
  EXPECT_EQ(content_of_file(to.get()), before);
  EXPECT_EQ(extents(from).shared_bytes, 3 * kMiB);
  EXPECT_EQ(extents(to).shared_bytes, 3 * kMiB);
}

TEST_F(CloneTest, OfAnotherFileSystemFails) {
  const Fd to = file("to");
  const testing::ScratchFolder folder;
  const auto from = open_at(AT_FDCWD, folder.path("from"), O_RDWR | O_CREAT);
  ASSERT_OK(from);
  EXPECT_ERRNO(EXDEV, clone(from.value().get(), to.get()));
}

TEST_F(CloneTest, ARange) {
  const auto data = pattern(kMiB, 1);
  const Fd from = file("from", data);
  const Fd to = file("to", pattern(2 * kMiB, 2));
  ASSERT_OK(clone_range(from.get(), 256 << 10, to.get(), 512 << 10, 128 << 10));
  const auto result = content_of_file(to.get());
  EXPECT_TRUE(std::equal(data.begin() + (256 << 10), data.begin() + (384 << 10), result.begin() + (512 << 10)));
  EXPECT_EQ(extents(to).shared_bytes, 128u << 10);
  EXPECT_EQ(result.size(), 2 * kMiB);
  EXPECT_ERRNO(EINVAL, clone_range(from.get(), 100, to.get(), 0, 4096));
}

TEST_F(CloneTest, ARangeToTheEnd) {
  const auto data = pattern(10'000, 1);
  const Fd from = file("from", data);
  const Fd to = file("to");
  ASSERT_OK(clone_range(from.get(), 4096, to.get(), 0, 0));
  const auto result = content_of_file(to.get());
  EXPECT_TRUE(std::equal(result.begin(), result.end(), data.begin() + 4096, data.end()));
}

TEST_F(CloneTest, DedupeSharesWhatIsEqual) {
  const auto data = pattern(2 * kMiB, 1);
  const Fd first = file("first", data);
  const Fd second = file("second", data);
  const auto shared = dedupe_range(first.get(), 0, second.get(), 0, 2 * kMiB);
  ASSERT_OK(shared);
  EXPECT_EQ(shared.value(), 2 * kMiB);
  EXPECT_EQ(extents(second).shared_bytes, 2 * kMiB);
  EXPECT_EQ(content_of_file(second.get()), data);
}

TEST_F(CloneTest, DedupeOfTheUnequalSharesNothing) {
  auto data = pattern(kMiB, 1);
  const Fd first = file("first", data);
  data[kMiB - 1] ^= std::byte{1};
  const Fd second = file("second", data);
  const auto shared = dedupe_range(first.get(), 0, second.get(), 0, kMiB);
  ASSERT_OK(shared);
  EXPECT_EQ(shared.value(), 0u);
  EXPECT_EQ(extents(second).shared_bytes, 0u);
  EXPECT_EQ(content_of_file(second.get()), data);
}

TEST_F(CloneTest, DedupeReportsErrors) {
  const Fd first = file("first", pattern(kMiB, 1));
  EXPECT_ERRNO(EBADF, dedupe_range(first.get(), 0, -1, 0, kMiB));
  const testing::ScratchFolder folder;
  const auto other = open_at(AT_FDCWD, folder.path("other"), O_RDWR | O_CREAT);
  ASSERT_OK(other);
  EXPECT_ERRNO(EXDEV, dedupe_range(first.get(), 0, other.value().get(), 0, kMiB));
}

TEST_F(CloneTest, ProbeOfXfs) {
  const auto capability = probe_sharing(path());
  ASSERT_OK(capability);
  EXPECT_TRUE(capability.value().clone);
  EXPECT_TRUE(capability.value().dedupe);
  EXPECT_TRUE(capability.value().extent_size_hint);
  EXPECT_EQ(capability.value().filesystem, "xfs");
  EXPECT_TRUE(std::filesystem::is_empty(path()));
}

TEST_F(CloneTest, ExtentHint) {
  const Fd fd = file("file");
  EXPECT_EQ(get_cow_extent_hint(fd.get()).value(), 0u);
  ASSERT_OK(set_cow_extent_hint(fd.get(), 1 << 20));
  EXPECT_EQ(get_cow_extent_hint(fd.get()).value(), 1u << 20);
  ASSERT_OK(set_cow_extent_hint(fd.get(), 16 << 20));
  EXPECT_EQ(get_cow_extent_hint(fd.get()).value(), 16u << 20);
}

TEST_F(CloneTest, OverwriteAllocationIsAllAfterACloneAndShrinksByUnits) {
  const uint64_t size = 4 * kMiB + 1000;
  const uint64_t whole = 4 * kMiB + kUnit;
  const Fd from = file("from", pattern(size, 1));
  ASSERT_OK(set_cow_extent_hint(from.get(), kUnit));
  EXPECT_EQ(allocation(from, size), 0u);
  const Fd to = file("to");
  ASSERT_OK(clone(from.get(), to.get()));
  EXPECT_EQ(allocation(from, size), whole);
  EXPECT_EQ(allocation(to, size), whole);

  ASSERT_OK(write_full(from.get(), pattern(2 * kUnit, 2), kUnit));
  const auto before_write_back = overwrite_allocation(from.get(), size, kUnit);
  ASSERT_OK(before_write_back);
  EXPECT_GE(before_write_back.value(), whole - 2 * kUnit);
  EXPECT_EQ(allocation(from, size), whole - 2 * kUnit);
  EXPECT_EQ(allocation(to, size), whole - 2 * kUnit);
  // only a part of the unit; the rest of it is still shared
  ASSERT_OK(write_full(from.get(), pattern(4096, 3), 5 * kUnit));
  EXPECT_EQ(allocation(from, size), whole - 2 * kUnit);
}

// Else a file of an exabyte without a block would need an exabyte.
TEST_F(CloneTest, OverwriteAllocationIsOfWhatTheFileHolds) {
  const Fd fd = file("file");
  ASSERT_EQ(::ftruncate(fd.get(), int64_t{1} << 60), 0);
  EXPECT_EQ(allocation(fd, uint64_t{1} << 60), 0u);
  ASSERT_OK(write_full(fd.get(), pattern(4096, 1), 3 * kUnit));
  ASSERT_EQ(::fallocate(fd.get(), 0, 5 * kUnit, kUnit), 0);
  EXPECT_EQ(allocation(fd, 8 * kUnit), 0u);
  const Fd to = file("to");
  ASSERT_OK(clone(fd.get(), to.get()));
  EXPECT_EQ(allocation(fd, 8 * kUnit), kUnit) << "what was allocated and not written is not shared";
  EXPECT_EQ(allocation(fd, 3 * kUnit), 0u) << "beyond the size asked for nothing counts";
  EXPECT_EQ(allocation(fd, 0), 0u);
  EXPECT_ERRNO(EINVAL, overwrite_allocation(fd.get(), 1, 0));
}

// The file has more extents than one FIEMAP call returns.
TEST_F(CloneTest, ManyExtents) {
  constexpr uint64_t kCount = 700;
  const Fd fd = file("file");
  const auto block = pattern(4096, 1);
  ASSERT_EQ(::ftruncate(fd.get(), kCount * 3 * 4096), 0);  // writes at the end of a file would allocate ahead
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_OK(write_full(fd.get(), block, static_cast<off_t>(i * 3 * 4096)));
  const ExtentSummary summary = extents(fd);
  EXPECT_EQ(summary.extents, kCount);
  EXPECT_EQ(summary.mapped_bytes, kCount * 4096);
  const Fd to = file("to");
  ASSERT_OK(clone(fd.get(), to.get()));
  EXPECT_EQ(allocation(fd, kCount * 3 * 4096, 4096), kCount * 4096);
}

TEST(ProbeSharingTest, OfTmpfs) {
  const auto capability = probe_sharing("/dev/shm");
  ASSERT_OK(capability);
  if (capability.value().filesystem != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs here";
  EXPECT_FALSE(capability.value().clone);
  EXPECT_FALSE(capability.value().dedupe);
  EXPECT_FALSE(capability.value().extent_size_hint);
}

TEST(ProbeSharingTest, OfAMissingFolder) { EXPECT_ERRNO(ENOENT, probe_sharing("/no/such/folder")); }

TEST(CowExtentHintTest, RoundsUpBetweenItsBounds) {
  EXPECT_EQ(cow_extent_hint(0), 128u << 10);
  EXPECT_EQ(cow_extent_hint(128 << 10), 128u << 10);
  EXPECT_EQ(cow_extent_hint((128 << 10) + 1), 256u << 10);
  EXPECT_EQ(cow_extent_hint(5 << 20), 8u << 20);
  EXPECT_EQ(cow_extent_hint(16 << 20), 16u << 20);
  EXPECT_EQ(cow_extent_hint(uint64_t{1} << 40), 16u << 20);
}

}  // namespace
}  // namespace ckptfs::io

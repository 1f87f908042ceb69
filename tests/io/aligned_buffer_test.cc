#include "io/aligned_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "io/fault.h"
#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::pattern;

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % AlignedBuffer::kAlignment == 0; }

TEST(AlignedBufferTest, GrowsAndNeverShrinks) {
  AlignedBuffer buffer;
  const auto small = buffer.get(100);
  ASSERT_EQ(small.size(), 100u);
  EXPECT_TRUE(is_aligned(small.data()));
  const auto large = buffer.get(1 << 20);
  ASSERT_EQ(large.size(), size_t{1} << 20);
  EXPECT_TRUE(is_aligned(large.data()));
  std::memset(large.data(), 0x5a, large.size());
  const auto again = buffer.get(1000);
  EXPECT_EQ(again.data(), large.data());
  EXPECT_EQ(again.size(), 1000u);
}

TEST(AlignedBufferTest, EmptyWhereMemoryIsShort) {
  AlignedBuffer buffer;
  EXPECT_TRUE(buffer.get(std::numeric_limits<size_t>::max()).empty());
  EXPECT_EQ(buffer.get(10).size(), 10u);
}

TEST(DirectAlignmentTest, Harmful) {
  EXPECT_FALSE((DirectAlignment{4, 512}.harmful()));
  EXPECT_FALSE((DirectAlignment{4, 1024}.harmful()));
  EXPECT_TRUE((DirectAlignment{512, 512}.harmful()));
  EXPECT_TRUE((DirectAlignment{4, 4096}.harmful()));
}

TEST(DirectAlignmentTest, UnknownIsThePage) {
  const auto pipe = open_at(AT_FDCWD, "/dev/null", O_RDONLY);
  ASSERT_OK(pipe);
  const DirectAlignment alignment = direct_alignment(pipe.value().get());
  EXPECT_EQ(alignment.memory, 4096u);
  EXPECT_EQ(alignment.offset, 4096u);
}

class DirectAlignmentXfsTest : public testing::XfsTest {};

// Compares the reported alignment with what O_DIRECT accepts.
TEST_F(DirectAlignmentXfsTest, IsWhatDirectIoTakes) {
  const Fd made = file("file", pattern(65536, 1));
  ASSERT_OK(fsync_fd(made.get()));
  const auto direct = open_at(AT_FDCWD, path("file"), O_RDONLY | O_DIRECT);
  ASSERT_OK(direct);
  const DirectAlignment alignment = direct_alignment(direct.value().get());
  EXPECT_GT(alignment.memory, 0u);
  EXPECT_LE(alignment.memory, 512u);
  EXPECT_EQ(alignment.offset, 512u);
  AlignedBuffer buffer;
  const auto memory = buffer.get(8192);
  EXPECT_OK(read_full(direct.value().get(), memory.subspan(alignment.memory, 512), 512));
  EXPECT_ERRNO(EINVAL, read_full(direct.value().get(), memory.first(512), 256));
}

#ifdef CKPTFS_FAULT_POINTS
TEST_F(DirectAlignmentXfsTest, AFaultPointOverrides) {
  const Fd made = file("file");
  const DirectAlignment real = direct_alignment(made.get());
  set_fault("dioalign", "4");
  EXPECT_EQ(direct_alignment(made.get()).memory, 4u);
  EXPECT_EQ(direct_alignment(made.get()).offset, real.offset);
  set_fault("dioalign", "8:4096");
  EXPECT_EQ(direct_alignment(made.get()).memory, 8u);
  EXPECT_EQ(direct_alignment(made.get()).offset, 4096u);
  set_fault("dioalign", "");
  EXPECT_EQ(direct_alignment(made.get()).memory, real.memory);
}
#endif

}  // namespace
}  // namespace ckptfs::io

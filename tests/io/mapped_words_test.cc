#include "io/mapped_words.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "io/fd.h"

namespace ckptfs::io {
namespace {

TEST(MappedWordsTest, AreInTheFileAtOnceOrAnError) {
  const Fd file(::memfd_create("words", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 8192), 0);
  auto mapped = MappedWords::map(file.get(), 4096, 512);
  ASSERT_TRUE(mapped) << mapped.error().message();
  const MappedWords words = std::move(mapped).value();
  ASSERT_TRUE(words.store(0, 7));
  ASSERT_TRUE(words.store(511, 8));
  std::array<uint64_t, 512> found{};
  ASSERT_EQ(::pread(file.get(), found.data(), sizeof found, 4096), ssize_t{sizeof found});
  EXPECT_EQ(found.front(), 7U);
  EXPECT_EQ(found.back(), 8U);
  ASSERT_EQ(::ftruncate(file.get(), 4096), 0);  // like a disk that has no room for the page
  EXPECT_EQ(words.store(0, 9).error().errno_value(), EIO);
  EXPECT_EQ(words.store(0, 9).error().errno_value(), EIO) << "the first left something blocked";
}

}  // namespace
}  // namespace ckptfs::io

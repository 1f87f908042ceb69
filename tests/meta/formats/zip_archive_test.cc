#include "meta/formats/zip_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

constexpr uint64_t kClaimed = 50'000'000;
constexpr uint64_t kOfEntry = 46;  // bytes of an entry in the directory

template <class... Numbers>
void append(std::string& to, Numbers... numbers) {
  (to.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
}

// A file of some bytes and one hole. What it claims to have would take gigabytes: a table of the entries, or what tells
// of a single one.
class LargeClaim : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(ZipArchive, LargeClaim, testing::Values(1, kClaimed));

TEST_P(LargeClaim, IsRefusedBeforeThereIsRoomForIt) {
  constexpr uint64_t size = kClaimed * kOfEntry, begin = 100;
  std::string end = "PK\6\6";
  append(end, uint64_t{44}, uint16_t{45}, uint16_t{45}, uint32_t{0}, uint32_t{0}, GetParam(), GetParam(), size, begin);
  end += "PK\6\7";
  append(end, uint32_t{0}, begin + size, uint32_t{1});
  end += "PK\5\6";
  append(end, uint16_t{0}, uint16_t{0}, uint16_t{0xffff}, uint16_t{0xffff}, UINT32_MAX, UINT32_MAX, uint16_t{0});
  for (const uint64_t before : {uint64_t{0}, uint64_t{4096}}) {  // in a file of its own, and as a part of one
    const io::Fd file = file_of("");
    ASSERT_TRUE(io::write_full(file.get(), std::as_bytes(std::span(end)), static_cast<off_t>(before + begin + size)));
    const auto archive = ZipArchive::open(file.get(), {before, begin + size + end.size()});
    ASSERT_FALSE(archive);
    EXPECT_THAT(archive.error().message(),
                testing::HasSubstr("claims to have " + std::to_string(GetParam()) + " entries"));
  }
}

// These names have the same value of a common hash function (hash * 33 + byte). In a hash table each would be compared
// with all names before it.
TEST(ZipArchive, ManyEntriesOfOneHash) {
  constexpr unsigned kBlocks = 16, kEntries = 60000;
  std::string directory;
  for (unsigned entry = 0; entry < kEntries; ++entry) {
    std::string name;
    for (unsigned block = 0; block < kBlocks; ++block) name += (entry >> block & 1) != 0 ? "Ez" : "FY";
    directory += "PK\1\2";
    append(directory, uint16_t{20}, uint16_t{20}, uint16_t{0}, uint16_t{0}, uint32_t{0}, uint32_t{0}, uint32_t{0},
           uint32_t{0}, uint16_t{2 * kBlocks}, uint16_t{0}, uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0},
           uint32_t{0});
    directory += name;
  }
  std::string zip = directory + "PK\5\6";
  append(zip, uint16_t{0}, uint16_t{0}, uint16_t{kEntries}, uint16_t{kEntries}, static_cast<uint32_t>(directory.size()),
         uint32_t{0}, uint16_t{0});
  const io::Fd file = file_of(zip);
  const auto archive = ZipArchive::open(file.get(), {0, zip.size()});
  ASSERT_TRUE(archive) << archive.error().message();
  EXPECT_EQ(archive.value().entries(), kEntries);
  EXPECT_EQ(archive.value().find("EzFYFYFYFYFYFYFYFYFYFYFYFYFYFYFY"), 1U);
  EXPECT_EQ(archive.value().find("EzFYFYFYFYFYFYFYFYFYFYFYFYFYFYF"), std::nullopt);
}

}  // namespace
}  // namespace ckptfs::meta::formats

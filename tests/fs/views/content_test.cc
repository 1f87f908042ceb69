#include "fs/views/content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace ckptfs::fs::views {
namespace {

// Two files of floats: 0, 1, 2, ... and 1000, 1001, ...
class ContentTest : public testing::Test {
 protected:
  ContentTest() {
    for (size_t file = 0; file < files_.size(); ++file) {
      for (int at = 0; at < 200000; ++at)
        files_[file].push_back(static_cast<float>(1000 * file) + static_cast<float>(at));
    }
    read_piece_ = [this](uint32_t file, std::span<std::byte> buffer, uint64_t offset) -> Result<size_t> {
      const auto bytes = std::as_bytes(std::span(files_.at(file)));
      if (offset >= bytes.size()) return size_t{0};
      const size_t length = std::min<uint64_t>(buffer.size(), bytes.size() - offset);
      std::memcpy(buffer.data(), bytes.data() + offset, length);
      return length;
    };
  }
  std::string read(const Content& content, uint64_t offset, size_t size) {
    std::string buffer(size, '?');
    const auto got = content.read(std::as_writable_bytes(std::span(buffer)), offset, read_piece_);
    EXPECT_TRUE(got) << got.error().message();
    buffer.resize(got ? got.value() : 0);
    return buffer;
  }

  std::array<std::vector<float>, 2> files_;
  ReadPiece read_piece_;
};

TEST_F(ContentTest, PartsThatAReadTouches) {
  Content content;
  content.add("header");
  content.add(Tensor{Dtype::float32, {4}, {{0, 0, 4}, {0, 8, 4}, {1, 0, 8}}});
  EXPECT_EQ(content.parts_of(0, 6), 1U);
  EXPECT_EQ(content.parts_of(5, 2), 2U);
  EXPECT_EQ(content.parts_of(6, 4), 1U);
  EXPECT_EQ(content.parts_of(6, 9), 3U);
  EXPECT_EQ(content.parts_of(0, 1000), 4U);
  EXPECT_EQ(content.parts_of(22, 1), 0U);
}

// Any part of the content equals that part of the whole content.
TEST_F(ContentTest, AnyPartIsThatOfTheWhole) {
  const Tensor tensor{Dtype::float32, {150003}, {{0, 40, 400000}, {1, 8, 200012}}};
  Content content;
  content.add("header");
  content.add(tensor);
  content.add("between");
  content.add(tensor, Dtype::bfloat16);
  content.add(tensor, Dtype::float16);
  const uint64_t size = 6 + 600012 + 7 + 2 * 300006;
  ASSERT_EQ(content.size(), size);
  const std::string whole = read(content, 0, size + 100);
  ASSERT_EQ(whole.size(), size);
  EXPECT_EQ(whole.substr(0, 6), "header");
  float first = 0, joined = 0;
  std::memcpy(&first, whole.data() + 6, sizeof(first));
  std::memcpy(&joined, whole.data() + 6 + 400000, sizeof(joined));
  EXPECT_EQ(first, 10.0F);
  EXPECT_EQ(joined, 1002.0F);
  for (uint64_t offset = 0; offset < size; offset += 1777) {
    for (const size_t length : {1, 2, 3, 7, 4097, 300001}) {
      ASSERT_EQ(read(content, offset, length), whole.substr(offset, length)) << offset << " " << length;
    }
  }
  EXPECT_EQ(read(content, size, 10), "");
  EXPECT_EQ(read(content, size + 5, 10), "");
  EXPECT_EQ(content.files(), (std::set<uint32_t>{0, 1}));
}

// Ranges that are adjacent in the content and in the file are one run. Texts and casts are not part of any run.
TEST_F(ContentTest, RunsAreAsLongAsTheyCanBe) {
  Content content;
  content.add("header");
  content.add(Tensor{Dtype::float32, {100}, {{0, 40, 400}}});
  content.add(Tensor{Dtype::float32, {25}, {{0, 440, 100}}});
  content.add(Tensor{Dtype::float32, {25}, {{0, 544, 100}}});
  content.add(Tensor{Dtype::float32, {25}, {{1, 644, 100}}});
  content.add(Tensor{Dtype::float32, {25}, {{1, 744, 100}}}, Dtype::bfloat16);
  content.add(Tensor{Dtype::float32, {25}, {{1, 844, 100}}});
  std::vector<std::array<uint64_t, 4>> runs;
  for (const auto& run : content.runs()) runs.push_back({run.begin, run.size, run.file, run.offset});
  const std::vector<std::array<uint64_t, 4>> expected{
      {6, 500, 0, 40}, {506, 100, 0, 544}, {606, 100, 1, 644}, {756, 100, 1, 844}};
  EXPECT_EQ(runs, expected);
}

TEST_F(ContentTest, AFileThatHasShrunkIsAnError) {
  const Tensor tensor{Dtype::float32, {4}, {{0, 200000 * 4 - 8, 16}}};
  for (const Dtype type : {Dtype::float32, Dtype::bfloat16}) {
    Content content;
    content.add(tensor, type);
    std::string buffer(16, '?');
    const auto got = content.read(std::as_writable_bytes(std::span(buffer)), 0, read_piece_);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().errno_value(), EIO);
  }
}

}  // namespace
}  // namespace ckptfs::fs::views

#include "meta/remote/chunk_cache.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/aligned_buffer.h"
#include "meta/remote/layout.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote {
namespace {

using io::testing::ScratchFolder;

class ChunkCacheTest : public ::testing::Test {
 protected:
  static std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
  static io::Digest digest_of(const std::string& text) { return io::digest_of(bytes_of(text)); }
  std::unique_ptr<ChunkCache> open(uint64_t chunks) const {
    return ChunkCache::open(folder_.path("cache"), chunks * kChunkBytes).value();
  }
  static void add(ChunkCache& cache, const std::string& text) { cache.add(digest_of(text), bytes_of(text)); }
  bool has(ChunkCache& cache, const std::string& text) {
    const auto room = buffer_.get(kChunkBytes);
    return cache.read(digest_of(text), text.size(), room) && std::memcmp(room.data(), text.data(), text.size()) == 0;
  }

  const ScratchFolder folder_;
  io::AlignedBuffer buffer_;
};

TEST_F(ChunkCacheTest, KeepsChunksOfAnyLength) {
  std::vector<std::string> texts;
  for (const size_t size : {size_t{1}, size_t{511}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{1'000'001},
                            size_t{kChunkBytes - 1}, size_t{kChunkBytes}}) {
    texts.push_back(testing::bytes_for(size, static_cast<unsigned>(size)));
  }
  auto cache = open(texts.size());
  for (const std::string& text : texts) add(*cache, text);
  for (const std::string& text : texts) EXPECT_TRUE(has(*cache, text)) << text.size();
  EXPECT_FALSE(cache->read(digest_of(texts[1]), 510, buffer_.get(kChunkBytes)));
  ASSERT_OK(cache->close());
  cache.reset();
  cache = open(texts.size());
  for (const std::string& text : texts) EXPECT_TRUE(has(*cache, text)) << text.size() << ", opened again";
  EXPECT_EQ(cache->usage().failed, 0U);
  cache.reset();  // without close()
  EXPECT_EQ(open(1)->usage().chunks, 0U);
}

TEST_F(ChunkCacheTest, WhatWasChangedOrCutIsNotThere) {
  const std::string first = testing::bytes_for(kChunkBytes, 1), second = testing::bytes_for(5000, 2);
  const auto cache = open(2);
  add(*cache, first);
  add(*cache, second);
  std::fstream file(folder_.path("cache/chunks"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(kChunkBytes - 1);
  file.put(static_cast<char>(first.back() ^ 1));
  file.close();
  EXPECT_FALSE(has(*cache, first));
  EXPECT_FALSE(cache->has(digest_of(first)));
  EXPECT_TRUE(has(*cache, second));
  std::filesystem::resize_file(folder_.path("cache/chunks"), kChunkBytes + 4999);
  EXPECT_FALSE(has(*cache, second));
  EXPECT_EQ(cache->usage().failed, 2U);
  add(*cache, first);
  EXPECT_TRUE(has(*cache, first));
}

TEST_F(ChunkCacheTest, TheOneThatWasUsedLongestAgoGoes) {
  std::vector<std::string> texts;
  for (unsigned seed = 0; seed < 4; ++seed) texts.push_back(testing::bytes_for(4096, seed));
  const auto cache = open(3);
  for (unsigned number = 0; number < 3; ++number) add(*cache, texts[number]);
  EXPECT_TRUE(has(*cache, texts[0]));
  add(*cache, texts[3]);
  EXPECT_FALSE(cache->has(digest_of(texts[1])));
  for (const unsigned number : {0U, 2U, 3U}) EXPECT_TRUE(has(*cache, texts[number])) << number;
}

TEST_F(ChunkCacheTest, AFolderIsForOneCache) {
  const auto cache = open(1);
  EXPECT_ERRNO(EBUSY, ChunkCache::open(folder_.path("cache"), kChunkBytes));
  std::ofstream(folder_.path("other")) << "x";
  EXPECT_ERRNO(ENOTEMPTY, ChunkCache::open(folder_.path(), kChunkBytes));
}

}  // namespace
}  // namespace ckptfs::meta::remote

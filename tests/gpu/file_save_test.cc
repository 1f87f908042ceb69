#include "gpu/file_save.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "io/fault.h"
#include "tests/gpu/staging_test.h"

namespace ckptfs::gpu {
namespace {

using io::testing::content_of_file;
using io::testing::pattern;
using testing::kSlot;

class FileSaveTest : public testing::StagingTest {
 protected:
  Result<std::unique_ptr<FileSave>> begin(uint64_t size, std::vector<Part> parts, Stream stream = nullptr) {
    auto fd = io::open_at(AT_FDCWD, path("file"), O_RDWR | O_CREAT | O_TRUNC);
    EXPECT_OK(fd);
    return FileSave::begin(staging_, path("file"), std::move(fd).value(), size, std::move(parts), stream);
  }

  std::vector<std::byte> saved() const {
    auto fd = io::open_at(AT_FDCWD, path("file"), O_RDONLY);
    EXPECT_OK(fd);
    return content_of_file(fd.value().get());
  }

  // Returns device memory with this content, at one byte past the start of an allocation.
  std::byte* on_device(std::vector<std::byte> bytes, Stream stream = nullptr) {
    std::byte* const memory = twin_->allocate(bytes.size() + 1).value() + 1;
    EXPECT_OK(twin_->pin(bytes));
    EXPECT_OK(twin_->copy_in(memory, bytes, stream));
    const auto event = OwnedEvent::make(*twin_);
    EXPECT_OK(twin_->record(event.value().get(), stream));
    EXPECT_OK(twin_->wait(event.value().get()));
    twin_->unpin(bytes);
    return memory;
  }
};

TEST_F(FileSaveTest, DigestsAreThoseOfTheFile) {
  for (const uint64_t size : {uint64_t{1}, uint64_t{kSlot}, 40 * kSlot + 5}) {
    const auto content = pattern(size, 3);
    auto fd = io::open_at(AT_FDCWD, path("file"), O_RDWR | O_CREAT | O_TRUNC);
    ASSERT_OK(fd);
    std::vector<Part> parts = {{content.data(), size / 2, 0},
                               {on_device(content) + size / 2, size - size / 2, size / 2}};
    auto save = FileSave::begin(staging_, path("file"), std::move(fd).value(), size, std::move(parts), nullptr, true);
    ASSERT_OK(save);
    ASSERT_OK(save.value()->wait_durable());
    EXPECT_TRUE(saved() == content);
    const auto& digests = save.value()->digests();
    ASSERT_TRUE(digests);
    EXPECT_EQ(digests->chunk, kSlot) << "not more than a slot";
    ASSERT_EQ(digests->digests.size(), (size + kSlot - 1) / kSlot);
    for (size_t at = 0; at < digests->digests.size(); ++at) {
      const auto chunk = std::span(content).subspan(at * kSlot);
      EXPECT_EQ(digests->digests[at], io::digest_of(chunk.first(std::min(kSlot, chunk.size())))) << at;
    }
  }
}

TEST_F(FileSaveTest, PartsOfDeviceAndHostMemoryWithZerosBetween) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 15; ++round) {
    std::vector<std::vector<std::byte>> contents;
    std::vector<Part> parts;
    uint64_t at = 0;
    std::vector<std::byte> expected;
    for (unsigned count = 0; count < 20; ++count) {
      at += random() % 3 == 0 ? random() % 10000 : 0;
      const uint64_t size = random() % 3 == 0 ? random() % (3 * kSlot) : random() % 500;
      const auto& content = contents.emplace_back(pattern(size, count));
      expected.resize(at);
      expected.insert(expected.end(), content.begin(), content.end());
      parts.push_back({random() % 2 == 0 ? content.data() : on_device(content), size, at});
      at += size;
    }
    expected.resize(at + random() % 5000);
    std::ranges::shuffle(parts, random);
    const auto save = begin(expected.size(), parts);
    ASSERT_OK(save);
    ASSERT_OK(save.value()->wait_durable());
    ASSERT_TRUE(saved() == expected) << "round " << round;
  }
}

TEST_F(FileSaveTest, NothingAtAll) {
  const auto save = begin(0, {});
  ASSERT_OK(save);
  EXPECT_OK(save.value()->wait_copied());
  EXPECT_OK(save.value()->wait_durable());
  EXPECT_TRUE(saved().empty());
}

// Once copied, the memory may change. The slow sync shows that the file is not yet durable then.
TEST_F(FileSaveTest, TheMemoryMayChangeOnceItIsCopied) {
  const auto content = pattern(40 * kSlot, 5);
  auto changing = content;
  std::byte* const memory = on_device(content);
  const auto save =
      begin(2 * content.size(), {{memory, content.size(), 0}, {changing.data(), changing.size(), content.size()}});
  ASSERT_OK(save);
  ASSERT_OK(save.value()->wait_copied());
  std::ranges::fill(changing, std::byte{0xEE});
  ASSERT_OK(twin_->pin(changing));
  ASSERT_OK(twin_->copy_in(memory, changing, nullptr));
  ASSERT_OK(save.value()->wait_durable());
  auto expected = content;
  expected.insert(expected.end(), content.begin(), content.end());
  EXPECT_TRUE(saved() == expected);
  ASSERT_OK(twin_->drain(nullptr));
  twin_->unpin(changing);
}

// Work that is still on the caller's stream is done before the memory is copied.
TEST_F(FileSaveTest, WaitsForTheStreamOfTheCaller) {
  std::vector<std::byte> first(kSlot, std::byte{1}), last(kSlot, std::byte{2});
  const auto stream = OwnedStream::make(*twin_);
  ASSERT_OK(stream);
  std::byte* const memory = on_device(first);
  ASSERT_OK(twin_->pin(first));
  ASSERT_OK(twin_->pin(last));
  for (int count = 0; count < 50; ++count) ASSERT_OK(twin_->copy_in(memory, first, stream.value().get()));
  ASSERT_OK(twin_->copy_in(memory, last, stream.value().get()));
  const auto save = begin(kSlot, {{memory, kSlot, 0}}, stream.value().get());
  ASSERT_OK(save);
  ASSERT_OK(save.value()->wait_durable());
  EXPECT_TRUE(saved() == last);
  ASSERT_OK(twin_->drain(stream.value().get()));
  twin_->unpin(first);
  twin_->unpin(last);
}

// The same for host memory that the device is still filling.
TEST_F(FileSaveTest, HostMemoryWaitsForTheStreamToo) {
  std::vector<std::byte> filled(kSlot, std::byte{1});
  const auto stream = OwnedStream::make(*twin_);
  ASSERT_OK(stream);
  std::byte* const first = on_device(std::vector<std::byte>(kSlot, std::byte{1}));
  std::byte* const last = on_device(std::vector<std::byte>(kSlot, std::byte{2}));
  ASSERT_OK(twin_->pin(filled));
  for (int count = 0; count < 50; ++count) ASSERT_OK(twin_->copy_out(filled, first, stream.value().get()));
  ASSERT_OK(twin_->copy_out(filled, last, stream.value().get()));
  const auto save = begin(kSlot, {{filled.data(), kSlot, 0}}, stream.value().get());
  ASSERT_OK(save);
  ASSERT_OK(save.value()->wait_durable());
  EXPECT_TRUE(saved() == std::vector<std::byte>(kSlot, std::byte{2}));
  ASSERT_OK(twin_->drain(stream.value().get()));
  twin_->unpin(filled);
}

TEST_F(FileSaveTest, PartsThatAreNone) {
  const auto content = pattern(100, 1);
  EXPECT_ERRNO(EINVAL, begin(150, {{content.data(), 100, 0}, {content.data(), 100, 50}}));
  EXPECT_ERRNO(EINVAL, begin(150, {{content.data(), 100, 51}}));
  EXPECT_ERRNO(EINVAL, begin(150, {{content.data(), 100, 200}}));
}

TEST_F(FileSaveTest, AFullDiskIsToldBeforeAnythingIsCopied) {
  const auto full = begin(uint64_t{1} << 50, {});
  ASSERT_FALSE(full);
  EXPECT_TRUE(full.error().errno_value() == ENOSPC || full.error().errno_value() == EFBIG) << full.error().message();
  EXPECT_NE(full.error().message().find("file"), std::string::npos);
}

TEST_F(FileSaveTest, AnErrorEndsBothWaitsAndNamesTheFile) {
  const auto content = pattern(100 * kSlot, 1);
  for (const char* const point : {"save.copy", "save.sync"}) {
    const bool copies = std::string(point) == "save.copy";
    io::set_fault(point, copies ? "30:error:EIO" : "error:EIO");
    const auto save = begin(content.size(), {{on_device(content), content.size(), 0}});
    ASSERT_OK(save);
    if (copies) {
      EXPECT_ERRNO(EIO, save.value()->wait_copied());
    }
    const auto durable = save.value()->wait_durable();
    EXPECT_ERRNO(EIO, durable);
    EXPECT_NE(durable.error().message().find("/file: "), std::string::npos);
    io::set_fault(point, "");
  }
  const auto save = begin(content.size(), {{content.data(), content.size(), 0}});
  ASSERT_OK(save);
  ASSERT_OK(save.value()->wait_durable());
  EXPECT_TRUE(saved() == content);
}

}  // namespace
}  // namespace ckptfs::gpu

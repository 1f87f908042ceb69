#include "gpu/remote_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <set>

#include "gpu/twin.h"
#include "meta/remote/remote_step.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::gpu {
namespace {

using meta::remote::ChunkReader;
using meta::remote::CommittedStep;
using meta::remote::kChunkBytes;
using meta::remote::RemoteFiles;
using meta::remote::RemoteStep;
using meta::remote::testing::BuiltPart;
using meta::remote::testing::bytes_for;

// Counts what comes from files, and flips byte `wrong_at` of the first one.
class FileStore : public io::testing::MemoryStore {
 public:
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const io::RequestLimits& limits) override {
    TRY_ASSIGN(const size_t got, MemoryStore::get(key, offset, buffer, limits));
    if (!meta::remote::parse_folder(key)) return got;
    fetched += got;
    if (key.ends_with("/file0") && offset <= wrong_at && wrong_at < offset + got)
      buffer[wrong_at - offset] ^= std::byte{1};
    return got;
  }
  std::atomic<uint64_t> fetched{0};
  std::atomic<uint64_t> wrong_at{UINT64_MAX};
};

class RemoteLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Staging::make(twin_, {.bytes = 512 << 10, .slot = 64 << 10, .lanes = 2});
    ASSERT_OK(made);
    staging_ = std::move(made).value();
    BuiltPart part;
    for (size_t file = 0; file < contents_.size(); ++file) part.file("file" + std::to_string(file), contents_[file]);
    const auto put = meta::remote::testing::put_step(store_, meta::remote::testing::new_save("global_step5"), {part},
                                                     folder_.path());
    ASSERT_OK(put);
    auto step = RemoteStep::open(store_, put.value(), folder_.path(), {});
    ASSERT_OK(step);
    const auto shared = std::make_shared<const RemoteStep>(std::move(step).value());
    reader_ = std::make_unique<ChunkReader>(store_, ChunkReader::Settings());
    files_ = std::make_unique<RemoteFiles>(*reader_, shared, shared->whole());
  }

  Result<LoadReport> load(std::vector<Wanted> wanted) {
    return load_remote({*reader_, *files_, {}}, *staging_, std::move(wanted), nullptr);
  }
  std::string wanted_of(const Wanted& one) const { return contents_[one.file].substr(one.offset, one.size); }
  // What came to a target, on the device or not.
  std::string came_to(const Wanted& one) {
    std::vector<std::byte> bytes(one.size);
    if (twin_->kind_of(one.target).value() == MemoryKind::host) {
      std::copy(one.target, one.target + one.size, bytes.begin());
    } else {
      EXPECT_OK(twin_->pin(bytes));
      EXPECT_OK(twin_->copy_out(bytes, one.target, nullptr));
      EXPECT_OK(twin_->drain(nullptr));
      twin_->unpin(bytes);
    }
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // Bytes of all chunks that hold something of the ranges.
  uint64_t needed_by(const std::vector<Wanted>& wanted) const {
    std::set<std::pair<uint32_t, uint64_t>> chunks;
    uint64_t bytes = 0;
    for (const Wanted& one : wanted) {
      for (uint64_t chunk = one.offset / kChunkBytes; chunk * kChunkBytes < one.offset + one.size; ++chunk) {
        const bool fresh = chunks.insert({one.file, chunk}).second;
        if (fresh) bytes += std::min(kChunkBytes, contents_[one.file].size() - chunk * kChunkBytes);
      }
    }
    return bytes;
  }

  const io::testing::ScratchFolder folder_;
  const std::vector<std::string> contents_{bytes_for(7 * kChunkBytes + 1234, 1), bytes_for(40 * kChunkBytes, 2),
                                           bytes_for(10, 3)};
  FileStore store_;
  const std::shared_ptr<Twin> twin_ = std::make_shared<Twin>(std::chrono::microseconds(300));
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<ChunkReader> reader_;
  std::unique_ptr<RemoteFiles> files_;
};

TEST_F(RemoteLoadTest, AnyRangesOfAnyFilesOntoTheDeviceAndIntoHostMemory) {
  std::mt19937_64 random(30);
  for (int round = 0; round < 20; ++round) {
    std::vector<Wanted> wanted;
    std::deque<std::vector<std::byte>> host;
    std::vector<std::byte*> device;
    for (int count = 0; count < 12; ++count) {
      const auto which = static_cast<uint32_t>(random() % contents_.size());
      const uint64_t offset = random() % contents_[which].size();
      const uint64_t most = random() % 2 == 0 ? 3 * kChunkBytes : 3000;
      const uint64_t size = std::min<uint64_t>(1 + random() % most, contents_[which].size() - offset);
      std::byte* target = nullptr;
      if (random() % 2 == 0) {
        target = host.emplace_back(size).data();
      } else {
        target = twin_->allocate(size).value();
        device.push_back(target);
      }
      wanted.push_back({which, offset, size, target});
    }
    const auto report = load(wanted);
    ASSERT_OK(report);
    for (const Wanted& one : wanted) ASSERT_EQ(came_to(one), wanted_of(one)) << one.file << " " << one.offset;
    EXPECT_LE(report.value().read, needed_by(wanted)) << "no chunk comes twice";
    EXPECT_EQ(report.value().checked, report.value().read);
    for (std::byte* const memory : device) ASSERT_OK(twin_->release(memory));
  }
}

TEST_F(RemoteLoadTest, EachChunkIsFetchedOnce) {
  std::vector<std::byte> memory(1000 * 500);
  std::vector<Wanted> wanted;  // many a range of each chunk, with gaps that are not worth a read of their own
  for (uint64_t at = 0; at < 200; ++at) wanted.push_back({1, at * 200'000 + 77, 500, memory.data() + at * 500});
  const auto report = load(wanted);
  ASSERT_OK(report);
  EXPECT_EQ(store_.fetched, needed_by(wanted));
  EXPECT_EQ(report.value().read, store_.fetched);
  for (const Wanted& one : wanted) EXPECT_EQ(came_to(one), wanted_of(one));
}

TEST_F(RemoteLoadTest, WhatIsOfOneTargetGoesStraightThere) {
  std::vector<std::byte> memory(40 * kChunkBytes);
  const Wanted all{1, 0, memory.size(), memory.data()};
  const auto report = load({all});
  ASSERT_OK(report);
  EXPECT_EQ(came_to(all), contents_[1]);
  EXPECT_EQ(report.value().straight, memory.size());
  EXPECT_EQ(report.value().read, memory.size());
  const Wanted end{0, 7 * kChunkBytes, 1234, memory.data()};
  ASSERT_OK(load({end}));
  EXPECT_EQ(came_to(end), wanted_of(end));
}

TEST_F(RemoteLoadTest, WhatTheReaderHasIsNotFetchedAgain) {
  std::vector<std::byte> memory(kChunkBytes);
  ASSERT_OK(reader_->read_now(files_->file(0), 0, std::span(memory).first(100)));
  EXPECT_EQ(store_.fetched, kChunkBytes);
  const Wanted one{0, 1000, 5000, memory.data()};
  const auto report = load({one});
  ASSERT_OK(report);
  EXPECT_EQ(report.value().read, 0U);
  EXPECT_EQ(came_to(one), wanted_of(one));
}

TEST_F(RemoteLoadTest, AWrongByteIsAnErrorThatNamesTensorFileAndObject) {
  const std::string tensor = "layers.0.weight";
  std::vector<std::byte> memory(7 * kChunkBytes);
  store_.wrong_at = 4 * kChunkBytes + 5;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{5}}) {  // straight, and not
    const auto wrong = load({{0, offset, 6 * kChunkBytes, memory.data(), false, &tensor}});
    EXPECT_ERRNO(EIO, wrong);
    const std::string words = wrong.error().message();
    for (const char* said : {"file0: chunk 4: memory:/global_step5.", "layers.0.weight"}) {
      EXPECT_NE(words.find(said), std::string::npos) << words;
    }
  }
  EXPECT_OK(load({{0, 0, 4 * kChunkBytes, memory.data()}}));
}

TEST_F(RemoteLoadTest, WhatLiesOutsideIsRefused) {
  std::byte byte{};
  EXPECT_ERRNO(EINVAL, load({{3, 0, 1, &byte}}));
  EXPECT_ERRNO(EIO, load({{2, 10, 1, &byte}}));
  EXPECT_OK(load({{2, 10, 0, &byte}}));
}

}  // namespace
}  // namespace ckptfs::gpu

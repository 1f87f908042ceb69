#include "io/transfer_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "io/aligned_buffer.h"
#include "io/fault.h"
#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::content_of_file;
using testing::pattern;
using testing::ScratchFolder;

constexpr size_t kPiece = 64 << 10;
constexpr unsigned kDepth = 4;

// The parameter is the fault point at which the kernel refuses a faster way, so each way of the queue is tested.
class TransferQueueTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (*GetParam() != '\0') set_fault(GetParam(), "error:EPERM");
    memory_ = buffer_.get(kDepth * kPiece);
    queue_ = TransferQueue::make(kDepth, memory_);
  }
  void TearDown() override {
    queue_.reset();
    if (*GetParam() != '\0') set_fault(GetParam(), "");
  }

  std::span<std::byte> piece(size_t slot) { return memory_.subspan(slot * kPiece, kPiece); }
  Fd open(const std::string& name) {
    auto file = open_at(AT_FDCWD, folder_.path(name), O_RDWR | O_CREAT);
    EXPECT_OK(file);
    return std::move(file).value();
  }

  ScratchFolder folder_;
  AlignedBuffer buffer_;
  std::span<std::byte> memory_;
  std::unique_ptr<TransferQueue> queue_;
};

TEST_P(TransferQueueTest, TellsWhatTheKernelRefused) {
  const Fd file = open("file");
  const int descriptor = file.get();
  queue_->use_files(std::span(&descriptor, 1));
  const std::string refused = GetParam();
  const auto way = queue_->way();
  if (!way.io_uring && refused != "transfer.io_uring") GTEST_SKIP() << "io_uring: this machine has none";
  EXPECT_EQ(way.io_uring, refused != "transfer.io_uring");
  EXPECT_EQ(way.registered_memory, refused.empty() || refused == "transfer.register_files");
  EXPECT_EQ(way.registered_files, refused.empty() || refused == "transfer.register_memory");
}

TEST_P(TransferQueueTest, WritesAndReadsBack) {
  constexpr size_t kPieces = 20;
  const auto content = pattern(kPieces * kPiece, 7);
  const Fd file = open("file"), other = open("other");
  const std::vector<int> files = {other.get(), file.get()};
  queue_->use_files(files);
  for (const auto kind : {TransferQueue::Kind::write, TransferQueue::Kind::read}) {
    std::vector<std::byte> back(content.size());
    std::map<uint64_t, size_t> slot_of;
    std::vector<size_t> idle = {0, 1, 2, 3};
    size_t next = 0;
    while (next < kPieces || !slot_of.empty()) {
      while (next < kPieces && !idle.empty()) {
        const auto memory = piece(idle.back());
        if (kind == TransferQueue::Kind::write) std::memcpy(memory.data(), content.data() + next * kPiece, kPiece);
        ASSERT_OK(queue_->begin({kind, file.get(), 1, memory, next * kPiece, kPiece, next}));
        slot_of[next++] = idle.back();
        idle.pop_back();
      }
      if (idle.empty()) {
        EXPECT_ERRNO(EBUSY, queue_->begin({kind, file.get(), 1, piece(0), 0, kPiece, 99}));
      }
      const auto finished = queue_->finish();
      ASSERT_OK(finished.bytes);
      EXPECT_EQ(finished.bytes.value(), kPiece);
      ASSERT_TRUE(slot_of.contains(finished.tag));
      const size_t slot = slot_of[finished.tag];
      std::memcpy(back.data() + finished.tag * kPiece, piece(slot).data(), kPiece);
      slot_of.erase(finished.tag);
      idle.push_back(slot);
    }
    EXPECT_TRUE(back == content);
  }
  EXPECT_TRUE(content_of_file(file.get()) == content);
  EXPECT_TRUE(content_of_file(other.get()).empty());
}

TEST_P(TransferQueueTest, MemoryOfItsOwnDoesToo) {
  const auto content = pattern(3 * kPiece, 8);
  const Fd file = open("file");
  ASSERT_OK(write_full(file.get(), content, 0));
  const int descriptor = file.get();
  queue_->use_files(std::span(&descriptor, 1));
  std::vector<std::byte> own(content.size());
  ASSERT_OK(queue_->begin({TransferQueue::Kind::read, descriptor, 0, own, 0, own.size(), 5}));
  const auto finished = queue_->finish();
  EXPECT_EQ(finished.tag, 5U);
  ASSERT_OK(finished.bytes);
  EXPECT_TRUE(own == content);
}

TEST_P(TransferQueueTest, TheEndOfAFileIsNoErrorWhereNoMoreIsWanted) {
  const Fd file = open("file");
  ASSERT_OK(write_full(file.get(), pattern(5000, 1), 0));
  const int descriptor = file.get();
  queue_->use_files(std::span(&descriptor, 1));
  ASSERT_OK(queue_->begin({TransferQueue::Kind::read, descriptor, 0, piece(0), 4096, 904, 0}));
  const auto enough = queue_->finish();
  ASSERT_OK(enough.bytes);
  EXPECT_EQ(enough.bytes.value(), 904U);
  ASSERT_OK(queue_->begin({TransferQueue::Kind::read, descriptor, 0, piece(0), 4096, 905, 0}));
  EXPECT_ERRNO(EIO, queue_->finish().bytes);
  ASSERT_OK(queue_->begin({TransferQueue::Kind::read, descriptor, 0, piece(0), 8192, 0, 0}));
  const auto nothing = queue_->finish();
  ASSERT_OK(nothing.bytes);
  EXPECT_EQ(nothing.bytes.value(), 0U);
}

TEST_P(TransferQueueTest, ErrorsAreThoseOfTheFile) {
  const Fd file = open("file");
  auto readable = open_at(AT_FDCWD, folder_.path("file"), O_RDONLY);
  ASSERT_OK(readable);
  const std::vector<int> files = {readable.value().get()};
  queue_->use_files(files);
  ASSERT_OK(queue_->begin({TransferQueue::Kind::write, files[0], 0, piece(0), 0, kPiece, 0}));
  EXPECT_ERRNO(EBADF, queue_->finish().bytes);
}

TEST_P(TransferQueueTest, WhatTheKernelCannotTakeNowItGetsAgain) {
  const Fd file = open("file");
  const int descriptor = file.get();
  queue_->use_files(std::span(&descriptor, 1));
  for (const char* refusal : {"1:error:EAGAIN", "1:error:EINTR"}) {
    set_fault("transfer.submit", refusal);
    EXPECT_OK(queue_->begin({TransferQueue::Kind::write, descriptor, 0, piece(0), 0, kPiece, 0}));
    set_fault("transfer.submit", "");
    ASSERT_TRUE(queue_->is_usable());
    const auto finished = queue_->finish();
    ASSERT_OK(finished.bytes);
    EXPECT_EQ(finished.bytes.value(), kPiece);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, TransferQueueTest,
                         ::testing::Values("", "transfer.io_uring", "transfer.register_memory",
                                           "transfer.register_files"));

}  // namespace
}  // namespace ckptfs::io

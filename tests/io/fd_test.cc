#include "io/fd.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::content_of_file;
using testing::pattern;
using testing::ScratchFolder;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(FdTest, ClosesOnceAndMoves) {
  int number = -1;
  {
    Fd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    number = first.get();
    Fd second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT: the moved-from state is part of the contract
    EXPECT_EQ(second.get(), number);
    Fd third;
    third = std::move(second);
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(FdTest, ReleasedIsNotClosed) {
  Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd owner(fd.release());
  fd.reset();
  EXPECT_TRUE(is_open(owner.get()));
}

TEST(OpenTest, ErrorNamesThePath) {
  const auto missing = open_at(AT_FDCWD, "/no/such/thing", O_RDONLY);
  EXPECT_ERRNO(ENOENT, missing);
  EXPECT_NE(missing.error().message().find("/no/such/thing"), std::string::npos) << missing.error().message();
}

TEST(OpenTest, SetsCloseOnExec) {
  const auto fd = open_at(AT_FDCWD, "/dev/null", O_RDONLY);
  ASSERT_OK(fd);
  EXPECT_EQ(::fcntl(fd.value().get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

// Opening a pipe for reading waits for a writer; signals interrupt it meanwhile.
TEST(OpenTest, InterruptedIsTriedAgain) {
  const ScratchFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  struct sigaction action {};
  action.sa_handler = [](int) {};  // without SA_RESTART
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);

  const pthread_t opener = ::pthread_self();
  Fd writing;
  std::jthread writer([&] {
    for (int i = 0; i < 5; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ::pthread_kill(opener, SIGALRM);
    }
    writing.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // this open does not wait
  });
  EXPECT_OK(open_at(AT_FDCWD, path, O_RDONLY));
  writer.join();
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST(ReadWriteTest, FullAndAtTheEnd) {
  const ScratchFolder folder;
  const auto fd = open_at(AT_FDCWD, folder.path("file"), O_RDWR | O_CREAT);
  ASSERT_OK(fd);
  const auto data = pattern(100'003, 1);
  ASSERT_OK(write_full(fd.value().get(), data, 7));
  ASSERT_EQ(stat_fd(fd.value().get()).value().st_size, 100'010);

  std::vector<std::byte> buffer(200'000);
  const auto whole = read_full(fd.value().get(), buffer, 7);
  ASSERT_OK(whole);
  EXPECT_EQ(whole.value(), data.size());
  EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
  EXPECT_EQ(read_full(fd.value().get(), buffer, 100'009).value(), 1u);
  EXPECT_EQ(read_full(fd.value().get(), buffer, 100'010).value(), 0u);
  EXPECT_EQ(read_full(fd.value().get(), buffer, 1'000'000).value(), 0u);
  EXPECT_EQ(read_full(fd.value().get(), {}, 0).value(), 0u);
}

TEST(ReadWriteTest, ErrorsAreReported) {
  const auto full = open_at(AT_FDCWD, "/dev/full", O_WRONLY);
  ASSERT_OK(full);
  EXPECT_ERRNO(ENOSPC, write_full(full.value().get(), pattern(10, 1), 0));
  std::vector<std::byte> buffer(10);
  EXPECT_ERRNO(EBADF, read_full(full.value().get(), buffer, 0));
  EXPECT_ERRNO(EBADF, fsync_fd(-1));
  EXPECT_ERRNO(EBADF, fdatasync_fd(-1));
  EXPECT_ERRNO(EBADF, syncfs_fd(-1));
  EXPECT_ERRNO(EBADF, stat_fd(-1));
}

TEST(ReadFileTest, AlsoWhatHasNoSize) {
  const auto text = read_file("/proc/self/status");
  ASSERT_OK(text);
  EXPECT_EQ(text.value().rfind("Name:", 0), 0u);
  EXPECT_ERRNO(ENOENT, read_file("/no/such/file"));
  EXPECT_ERRNO(EISDIR, read_file("/"));
}

TEST(ReplaceFileTest, MakesAndReplaces) {
  const ScratchFolder folder;
  const std::string path = folder.path("config.json");
  ASSERT_OK(replace_file(path, "a longer first text"));
  EXPECT_EQ(read_file(path).value(), "a longer first text");
  const ino_t first = stat_at(AT_FDCWD, path).value().st_ino;
  const auto reader = open_at(AT_FDCWD, path, O_RDONLY);
  ASSERT_OK(reader);

  ASSERT_OK(replace_file(path, "second"));
  EXPECT_EQ(read_file(path).value(), "second");
  EXPECT_NE(stat_at(AT_FDCWD, path).value().st_ino, first);
  EXPECT_EQ(content_of_file(reader.value().get()).size(), 19u) << "the old file was changed, not replaced";
  EXPECT_ERRNO(ENOENT, stat_at(AT_FDCWD, path + ".new"));
}

TEST(ReplaceFileTest, FailureLeavesWhatWasThere) {
  const ScratchFolder folder;
  EXPECT_ERRNO(ENOENT, replace_file(folder.path("missing/file"), "text"));
  ASSERT_EQ(::mkdir(folder.path("taken").c_str(), 0700), 0);
  EXPECT_ERRNO(EISDIR, replace_file(folder.path("taken"), "text"));
  EXPECT_ERRNO(ENOENT, stat_at(AT_FDCWD, folder.path("taken.new")));
  EXPECT_TRUE(S_ISDIR(stat_at(AT_FDCWD, folder.path("taken")).value().st_mode));
}

TEST(SyncParentTest, OfAPathWithoutFolder) {
  EXPECT_OK(sync_parent("name"));
  EXPECT_ERRNO(ENOENT, sync_parent("/no/such/name"));
}

}  // namespace
}  // namespace ckptfs::io

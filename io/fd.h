// File descriptors with an owner, and reads and writes of full length. Every call retries EINTR. Thread safety: an Fd
// must not be used by another thread while it changes. The free functions have no state.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "io/result.h"

namespace ckptfs::io {

// Owns one descriptor and closes it. Move-only.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1);
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// openat(2) with O_CLOEXEC added. The error names `path`.
Result<Fd> open_at(int dir_fd, const std::string& path, int flags, mode_t mode = 0600);
Result<struct stat> stat_fd(int fd);
Result<struct stat> stat_at(int dir_fd, const std::string& path, int flags = AT_SYMLINK_NOFOLLOW);

// Reads until `buffer` is full or the file ends. Returns the number of bytes read.
Result<size_t> read_full(int fd, std::span<std::byte> buffer, off_t offset);
// Writes all of `data`. After an error, a part of it may have been written.
Result<> write_full(int fd, std::span<const std::byte> data, off_t offset);
// Allocates blocks for the file's first `size` bytes. Succeeds without doing anything where the file system has no
// fallocate; a full disk then shows only at the write.
Result<> allocate(int fd, uint64_t size);
// Reads from the descriptor's current position to the end. It ignores the file's size, which is wrong in /proc and
// /sys. `path`: for the error.
Result<std::string> read_to_end(int fd, const std::string& path);
// Reads a whole small file as text, also one whose size the kernel does not tell (/proc, /sys).
Result<std::string> read_file(const std::string& path);
// Replaces the file's content durably: writes a new file beside it, fsyncs that, renames it over the old one, and
// fsyncs the folder.
Result<> replace_file(const std::string& path, const std::string& content, mode_t mode = 0600);
// fsyncs the folder that contains `path`. This makes a creation, rename or removal of that name durable.
Result<> sync_parent(const std::string& path);

Result<> fsync_fd(int fd);
Result<> fdatasync_fd(int fd);
Result<> syncfs_fd(int fd);

}  // namespace ckptfs::io

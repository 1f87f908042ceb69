#include "io/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "io/retry.h"

namespace ckptfs::io {

Result<std::string> read_to_end(int fd, const std::string& path) {
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t n = retry_interrupted([&] { return ::read(fd, buffer, sizeof buffer); });
    if (n < 0) return last_error(path);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

namespace {

Result<> write_new_file(const std::string& path, const std::string& content, mode_t mode) {
  TRY_ASSIGN(const Fd fd, open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode));
  TRY(write_full(fd.get(), std::as_bytes(std::span(content)), 0));
  return fsync_fd(fd.get());
}

}  // namespace

void Fd::reset(int fd) {
  // close() is not retried: Linux frees the descriptor even when close reports EINTR, so a second close could close
  // another thread's file.
  if (fd_ >= 0 && fd_ != fd) ::close(fd_);
  fd_ = fd;
}

Result<Fd> open_at(int dir_fd, const std::string& path, int flags, mode_t mode) {
  const int fd = retry_interrupted([&] { return ::openat(dir_fd, path.c_str(), flags | O_CLOEXEC, mode); });
  if (fd < 0) return last_error(path);
  return Fd(fd);
}

Result<struct stat> stat_fd(int fd) {
  struct stat result {};
  if (retry_interrupted([&] { return ::fstat(fd, &result); }) != 0) return last_error("fstat");
  return result;
}

Result<struct stat> stat_at(int dir_fd, const std::string& path, int flags) {
  struct stat result {};
  if (retry_interrupted([&] { return ::fstatat(dir_fd, path.c_str(), &result, flags); }) != 0) return last_error(path);
  return result;
}

Result<size_t> read_full(int fd, std::span<std::byte> buffer, off_t offset) {
  size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t n = retry_interrupted(
        [&] { return ::pread(fd, buffer.data() + done, buffer.size() - done, offset + static_cast<off_t>(done)); });
    if (n < 0) return last_error("read");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

Result<> write_full(int fd, std::span<const std::byte> data, off_t offset) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = retry_interrupted(
        [&] { return ::pwrite(fd, data.data() + done, data.size() - done, offset + static_cast<off_t>(done)); });
    if (n < 0) return last_error("write");
    if (n == 0) return Error(EIO, "write: the file took no bytes");
    done += static_cast<size_t>(n);
  }
  return success();
}

Result<> allocate(int fd, uint64_t size) {
  if (size == 0) return success();
  const int outcome = retry_interrupted([&] { return ::fallocate(fd, 0, 0, static_cast<off_t>(size)); });
  if (outcome != 0 && errno != EOPNOTSUPP) return last_error("room for " + std::to_string(size) + " bytes");
  return success();
}

Result<std::string> read_file(const std::string& path) {
  TRY_ASSIGN(const Fd fd, open_at(AT_FDCWD, path, O_RDONLY));
  return read_to_end(fd.get(), path);
}

Result<> replace_file(const std::string& path, const std::string& content, mode_t mode) {
  const std::string temporary = path + ".new";
  Result<> written = write_new_file(temporary, content, mode);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) written = last_error(path);
  if (!written) {
    ::unlink(temporary.c_str());
    return written;
  }
  return sync_parent(path);
}

Result<> sync_parent(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  TRY_ASSIGN(const Fd folder, open_at(AT_FDCWD, parent.empty() ? "." : parent, O_RDONLY | O_DIRECTORY));
  return fsync_fd(folder.get());
}

Result<> fsync_fd(int fd) {
  if (retry_interrupted([&] { return ::fsync(fd); }) != 0) return last_error("fsync");
  return success();
}

Result<> fdatasync_fd(int fd) {
  if (retry_interrupted([&] { return ::fdatasync(fd); }) != 0) return last_error("fdatasync");
  return success();
}

Result<> syncfs_fd(int fd) {
  if (retry_interrupted([&] { return ::syncfs(fd); }) != 0) return last_error("syncfs");
  return success();
}

}  // namespace ckptfs::io

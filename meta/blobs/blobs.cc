#include "meta/blobs/blobs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>

namespace ckptfs::meta {
namespace {
constexpr size_t kNameLength = 16;
constexpr const char* kGeneration = "user.ckptfs.generation";
}  // namespace

std::string Blobs::name(BlobNumber number) {
  char text[kNameLength + 1];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::optional<BlobNumber> Blobs::parse_name(const std::string& name) {
  BlobNumber number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number, 16);
  if (name.size() != kNameLength || error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// Asking takes a sum over all processors, so it is done for some at a time: at most a quarter of the reserve.
Result<> Blobs::refuse_without_inodes() const {
  if (unasked_.fetch_sub(1, std::memory_order_relaxed) > 0) return success();
  struct statvfs fs {};
  if (::fstatvfs(folder_fd_, &fs) != 0) return last_error("the store's free inodes");
  if (fs.f_files != 0 && fs.f_favail < kInodeReserve) {
    return Error(ENOSPC, "the store has no inodes left, but those that removals need: remove files or steps");
  }
  unasked_.store(kInodeReserve / 4, std::memory_order_relaxed);
  return success();
}

Result<io::Fd> Blobs::create(BlobNumber number) const {
  TRY(refuse_without_inodes());
  return io::open_at(folder_fd_, name(number), O_RDWR | O_CREAT | O_EXCL, 0600);
}

Result<io::Fd> Blobs::open(BlobNumber number, int flags) const { return io::open_at(folder_fd_, name(number), flags); }

Result<struct stat> Blobs::stat(BlobNumber number) const { return io::stat_at(folder_fd_, name(number)); }

Result<> Blobs::remove(BlobNumber number) const {
  if (::unlinkat(folder_fd_, name(number).c_str(), 0) != 0 && errno != ENOENT) return last_error(name(number));
  return success();
}

Result<> Blobs::set_times(BlobNumber number, const timespec& atime, const timespec& mtime) const {
  const timespec times[2] = {atime, mtime};
  if (::utimensat(folder_fd_, name(number).c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) return last_error(name(number));
  return success();
}

Result<uint64_t> Blobs::generation() const {
  char text[kNameLength + 1] = {};
  if (::fgetxattr(folder_fd_, kGeneration, text, kNameLength) < 0) {
    if (errno == ENODATA || errno == EOPNOTSUPP) return uint64_t{0};
    return last_error("the generation of blobs/");
  }
  const auto generation = parse_name(text);
  if (!generation) return Error(EIO, std::string("blobs/: its xattr ") + kGeneration + " is damaged; remove it");
  return *generation;
}

Result<> Blobs::set_generation(uint64_t generation) const {
  if (::fsetxattr(folder_fd_, kGeneration, name(generation).data(), kNameLength, 0) != 0) {
    return errno == EOPNOTSUPP ? Result<>(success()) : last_error("the generation of blobs/");
  }
  return io::fsync_fd(folder_fd_);
}

Result<std::vector<BlobNumber>> Blobs::list() const {
  TRY_ASSIGN(io::Fd fd, io::open_at(folder_fd_, ".", O_RDONLY | O_DIRECTORY));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), &::closedir);
  if (!directory) return last_error("blobs/");
  fd.release();
  std::vector<BlobNumber> numbers;
  errno = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (const auto number = parse_name(entry->d_name)) numbers.push_back(*number);
    errno = 0;
  }
  if (errno != 0) return last_error("blobs/");
  return numbers;
}

}  // namespace ckptfs::meta

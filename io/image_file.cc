#include "io/image_file.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <limits>

#include "io/fd.h"
#include "io/process.h"
#include "io/retry.h"
#include "io/text.h"

namespace ckptfs::io {

namespace {

constexpr uint64_t kBlock = 4096;

// Reads an integer in big-endian order, which XFS uses on disk.
uint32_t big_endian(const std::byte* from, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | std::to_integer<uint32_t>(from[i]);
  return value;
}

// Checks before allocating: an allocation that fills the disk first would make other programs fail.
Result<> check_space(const std::string& path, uint64_t size) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  struct statvfs space {};
  if (retry_interrupted([&] { return ::statvfs(folder.c_str(), &space); }) != 0) return last_error(folder);
  const uint64_t available = uint64_t{space.f_bavail} * space.f_frsize;
  if (available >= size) return success();
  return Error(ENOSPC, folder + ": an image of " + format_size(size) + " does not fit, " +
                           format_size(available >> 20 << 20) +
                           " are free; choose a smaller one (--sparse allocates "
                           "only as it fills, but breaks when the disk under it is full)");
}

Result<> give_size(int fd, const std::string& path, const ImageOptions& options) {
  const auto size = static_cast<off_t>(usable_image_size(options.size));
  if (options.sparse) {
    if (retry_interrupted([&] { return ::ftruncate(fd, size); }) != 0) return last_error(path);
    return success();
  }
  TRY(check_space(path, static_cast<uint64_t>(size)));
  if (retry_interrupted([&] { return ::fallocate(fd, 0, 0, size); }) != 0) {
    const int e = errno;
    const std::string words =
        "allocating " + format_size(options.size) + " for " + path + ": " + std::system_category().message(e);
    return Error(e, e == EOPNOTSUPP ? words + " (this file system cannot; --sparse needs no allocation)" : words);
  }
  return success();
}

Result<> build(const std::string& path, const ImageOptions& options) {
  TRY_ASSIGN(const Fd fd, open_at(AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL));
  TRY(give_size(fd.get(), path, options));
  // -K: mkfs must not discard, which would free the blocks that were just allocated.
  TRY(run_checked({"mkfs.xfs", "-q", "-K", "-m", "reflink=1", "-s", "size=" + std::to_string(options.sector), path}));
  return fsync_fd(fd.get());
}

}  // namespace

Result<uint64_t> parse_size(const std::string& text) {
  const Error wrong(EINVAL, "'" + text + "' is no size: a whole number and K, M, G or T, as in 64G");
  constexpr std::string_view kSuffixes = "KMGT";
  const size_t unit = text.empty() ? kSuffixes.npos : kSuffixes.find(text.back());
  if (unit == kSuffixes.npos) return wrong;
  const size_t shift = 10 * (unit + 1);
  const auto number = parse_number<uint64_t>(std::string_view(text).substr(0, text.size() - 1));
  if (!number || *number == 0 || *number > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) >> shift)
    return wrong;
  return *number << shift;
}

std::string format_size(uint64_t bytes) {
  unsigned unit = 0;
  while (unit < 4 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  constexpr std::array kSizeUnits = {" bytes", "K", "M", "G", "T"};
  return std::to_string(bytes) + kSizeUnits[unit];
}

uint64_t usable_image_size(uint64_t size) { return size / kBlock * kBlock; }

Result<ImageFacts> inspect_image(const std::string& path) {
  TRY_ASSIGN(const Fd fd, open_at(AT_FDCWD, path, O_RDONLY));
  TRY_ASSIGN(const struct stat status, stat_fd(fd.get()));
  std::array<std::byte, 512> superblock{};
  TRY_ASSIGN(const size_t length, read_full(fd.get(), superblock, 0));
  constexpr uint32_t kMagic = 0x58465342;  // "XFSB"
  if (length != superblock.size() || big_endian(superblock.data(), 4) != kMagic) {
    return Error(EINVAL, path + " holds no XFS: it is no image, or it is damaged; it is left as it is");
  }
  ImageFacts facts;
  facts.size = static_cast<uint64_t>(status.st_size);
  facts.sector = big_endian(superblock.data() + 102, 2);
  facts.allocated = static_cast<uint64_t>(status.st_blocks) * 512 >= facts.size;
  if (facts.sector != 512 && facts.sector != 4096) {
    return Error(EINVAL, path + ": sectors of " + std::to_string(facts.sector) + " bytes; only 512 and 4096 are known");
  }
  return facts;
}

Result<> make_image(const std::string& path, const ImageOptions& options) {
  const std::string temporary = path + ".new";
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) return last_error(temporary);
  Result<> built = build(temporary, options);
  // Unlike rename, link fails if the name is taken.
  if (built && ::link(temporary.c_str(), path.c_str()) != 0) built = last_error(path);
  ::unlink(temporary.c_str());
  if (!built) return built;
  return sync_parent(path);
}

}  // namespace ckptfs::io

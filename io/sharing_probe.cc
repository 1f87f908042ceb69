#include "io/sharing_probe.h"

#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <vector>

#include "io/clone.h"
#include "io/extents.h"
#include "io/retry.h"

namespace ckptfs::io {

namespace {

struct KnownFilesystem {
  uint64_t magic;
  const char* name;
};
constexpr std::array kKnownFilesystems = {
    KnownFilesystem{0x58465342, "xfs"},       KnownFilesystem{0x9123683e, "btrfs"},
    KnownFilesystem{0xef53, "ext4"},          KnownFilesystem{0x01021994, "tmpfs"},
    KnownFilesystem{0x794c7630, "overlayfs"}, KnownFilesystem{0x2fc12fc1, "zfs"},
    KnownFilesystem{0xca451a4e, "bcachefs"},  KnownFilesystem{0xf2f52010, "f2fs"},
    KnownFilesystem{0x6969, "nfs"},           KnownFilesystem{0x65735546, "fuse"},
    KnownFilesystem{0x858458f6, "ramfs"},     KnownFilesystem{0x4d44, "vfat"},
};

std::string filesystem_name(uint64_t magic) {
  for (const KnownFilesystem& known : kKnownFilesystems) {
    if (known.magic == magic) return known.name;
  }
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(magic));
  return text;
}

// True for the errors of a file system without such an operation. Any other error is a failure of the probe itself.
bool means_unsupported(const Error& error) {
  switch (error.errno_value()) {
    case EOPNOTSUPP:
    case ENOTTY:
    case EINVAL:
    case EXDEV:
    case ENOSYS:
      return true;
    default:
      return false;
  }
}

Result<bool> worked(const Result<>& tried) {
  if (tried) return true;
  if (means_unsupported(tried.error())) return false;
  return tried.error();
}

// Makes a file without a name, so that nothing is left behind. Where the file system cannot do that, the name is
// removed at once.
Result<Fd> scratch_file(const std::string& folder) {
  Result<Fd> unnamed = open_at(AT_FDCWD, folder, O_TMPFILE | O_RDWR);
  if (unnamed) return unnamed;
  const int e = unnamed.error().errno_value();
  if (e != EOPNOTSUPP && e != EISDIR && e != EINVAL) return unnamed;
  std::string name = folder + "/.ckptfs-probe-XXXXXX";
  const int fd = retry_interrupted([&] { return ::mkostemp(name.data(), O_CLOEXEC); });
  if (fd < 0) return last_error(folder);
  Fd file(fd);
  if (::unlink(name.c_str()) != 0) return last_error(name);
  return file;
}

// A clone that FIEMAP does not report as shared may be a silent copy. Then overwrite_allocation() would be wrong.
Result<bool> try_clone(int from, int to) {
  TRY_ASSIGN(const bool cloned, worked(clone(from, to)));
  if (!cloned) return false;
  const Result<ExtentSummary> extents = summarize_extents(to);
  if (!extents && means_unsupported(extents.error())) return false;
  if (!extents) return extents.error();
  return extents.value().shared_bytes > 0;
}

Result<bool> try_dedupe(int from, int to, uint64_t length) {
  const Result<uint64_t> shared = dedupe_range(from, 0, to, 0, length);
  if (shared) return shared.value() == length;
  if (means_unsupported(shared.error())) return false;
  return shared.error();
}

Result<bool> try_extent_hint(int fd) {
  const uint32_t hint = cow_extent_hint(0);
  TRY_ASSIGN(const bool taken, worked(set_cow_extent_hint(fd, hint)));
  if (!taken) return false;
  TRY_ASSIGN(const uint32_t present, get_cow_extent_hint(fd));
  return present == hint;
}

}  // namespace

Result<std::string> filesystem_of(const std::string& folder) {
  struct statfs space {};
  if (retry_interrupted([&] { return ::statfs(folder.c_str(), &space); }) != 0) return last_error(folder);
  return filesystem_name(static_cast<uint64_t>(space.f_type) & 0xffffffff);
}

Result<SharingCapability> probe_sharing(const std::string& folder) {
  SharingCapability capability;
  TRY_ASSIGN(capability.filesystem, filesystem_of(folder));

  const std::vector<std::byte> data(256 << 10, std::byte{0x5a});
  TRY_ASSIGN(const Fd first, scratch_file(folder));
  TRY_ASSIGN(const Fd second, scratch_file(folder));
  TRY_ASSIGN(const Fd third, scratch_file(folder));
  TRY(write_full(first.get(), data, 0));
  TRY(write_full(third.get(), data, 0));
  TRY_ASSIGN(capability.extent_size_hint, try_extent_hint(second.get()));
  TRY_ASSIGN(capability.clone, try_clone(first.get(), second.get()));
  TRY_ASSIGN(capability.dedupe, try_dedupe(first.get(), third.get(), data.size()));
  return capability;
}

}  // namespace ckptfs::io

#include "io/image.h"

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "io/fd.h"
#include "io/log.h"
#include "io/loop_device.h"
#include "io/mount_table.h"
#include "io/text.h"

namespace ckptfs::io {

namespace {

// Runs `undo` at the end of the scope unless dismissed.
template <class Undo>
class Rollback {
 public:
  explicit Rollback(Undo undo) : undo_(std::move(undo)) {}
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;
  ~Rollback() {
    if (armed_) undo_();
  }
  void dismiss() { armed_ = false; }

 private:
  Undo undo_;
  bool armed_ = true;
};

Result<> check_root() {
  if (::geteuid() == 0) return success();
  return Error(EPERM, "an image needs root: it is mounted by a loop device");
}

// Resolves symbolic links, because the mount table and the kernel use resolved paths.
Result<std::string> canonical(const std::string& folder) {
  std::error_code code;
  const std::filesystem::path path = std::filesystem::canonical(folder, code);
  if (code) return Error(code.value(), folder + ": " + code.message());
  return path.string();
}

MountedImage paths_in(const std::string& store) {
  MountedImage image;
  image.image = store + "/" + kImageName;
  image.folder = store + "/fs";
  return image;
}

// Returns true if it made the folder, and false if the folder existed.
Result<bool> make_folder(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) == 0) return true;
  if (errno == EEXIST) return false;
  return last_error(path);
}

// Returns true if this image is already mounted at its folder. Fails with EBUSY if the image is mounted elsewhere or
// something else is mounted at the folder.
Result<bool> already_mounted(const MountedImage& image, const LoopDevice* loop) {
  TRY_ASSIGN(const std::vector<MountEntry> table, mount_table());
  const MountEntry* at_folder = nullptr;
  const MountEntry* elsewhere = nullptr;
  for (const MountEntry& entry : table) {
    if (entry.mountpoint == image.folder) {
      at_folder = &entry;
    } else if (loop != nullptr && entry.device == loop->numbers) {
      elsewhere = &entry;
    }
  }
  if (at_folder != nullptr) {
    if (loop != nullptr && at_folder->device == loop->numbers) return true;
    return Error(EBUSY, image.folder + ": " + at_folder->source + " (" + at_folder->type +
                            ") is mounted there; unmount it first");
  }
  if (elsewhere == nullptr) return false;
  return Error(EBUSY, image.image + " is mounted at " + elsewhere->mountpoint + "; unmount it there first");
}

Result<> mount_xfs(const MountedImage& image) {
  if (::mount(image.device.c_str(), image.folder.c_str(), "xfs", MS_NOATIME, nullptr) == 0) return success();
  const int e = errno;
  std::string words = "mounting " + image.image + " (" + image.device + ") at " + image.folder + ": " +
                      std::system_category().message(e);
  if (e == EINVAL) words += " (is a copy of this image mounted elsewhere? the kernel log says more)";
  if (e == ENODEV) words += " (this kernel has no XFS: modprobe xfs)";
  return Error(e, words);
}

// A store relies on an image that was allocated in full; discards would make it sparse.
void keep_allocated(const MountedImage& image) {
  const Result<> kept = refuse_discards(image.device);
  if (!kept) {
    log::warn("{}: discards cannot be refused ({}): fstrim would make {} sparse", image.device, kept.error().message(),
              image.image);
  }
}

Result<> attach_and_mount(MountedImage& image, const ImageFacts& facts) {
  TRY_ASSIGN(const LoopDevice loop, attach_loop(image.image, facts.sector));
  Rollback detach([&] {
    const Result<> detached = detach_loop(loop.device);
    if (!detached) log::error("{}", detached.error().message());
  });
  image.device = loop.device;
  image.direct = loop.direct;
  if (facts.allocated) keep_allocated(image);
  TRY(mount_xfs(image));
  detach.dismiss();
  return success();
}

// Mounts the existing image, or finds it mounted. A loop device that a crash left attached is used again. A second one
// is never attached: two XFS mounts of one file would destroy each other's data.
Result<MountedImage> mount_present(MountedImage image) {
  TRY_ASSIGN(const ImageFacts facts, inspect_image(image.image));
  TRY(make_folder(image.folder, 0700));
  TRY_ASSIGN(const std::vector<LoopDevice> loops, loops_of(image.image));
  if (loops.size() > 1) {
    return Error(EBUSY, image.image + " stands under several loop devices, " + loops[0].device + " and " +
                            loops[1].device + "; detach (losetup -d) what is not in use");
  }
  TRY_ASSIGN(const bool mounted, already_mounted(image, loops.empty() ? nullptr : &loops.front()));
  if (loops.empty()) {
    TRY(attach_and_mount(image, facts));
    return image;
  }
  image.device = loops.front().device;
  image.direct = loops.front().direct;
  log::info("{}: {} from before is used again", image.image, mounted ? "the mount" : "the loop device");
  if (!mounted) TRY(mount_xfs(image));
  return image;
}

// An existing image is not changed, so the requested size and sector must be its own.
Result<> check_matches(const std::string& path, const ImageOptions& options) {
  TRY_ASSIGN(const ImageFacts facts, inspect_image(path));
  if (facts.size != usable_image_size(options.size)) {
    return Error(EEXIST, path + " is there, with " + format_size(facts.size) + ", not " + format_size(options.size) +
                             "; mount it without --image, or choose another store");
  }
  if (facts.sector != options.sector) {
    return Error(EEXIST, path + " is there, with sectors of " + std::to_string(facts.sector) + " bytes, not " +
                             std::to_string(options.sector) + "; mount it without --image");
  }
  return success();
}

Result<> check_options(const ImageOptions& options) {
  if (options.size < kMinimumImageSize) {
    return Error(EINVAL, "an image of " + format_size(options.size) + " is too small: at least " +
                             format_size(kMinimumImageSize));
  }
  if (options.sector == 512 || options.sector == 4096) return success();
  return Error(EINVAL, "a sector of " + std::to_string(options.sector) + " bytes: only 512 and 4096 are possible");
}

Result<MountedImage> make_and_mount(const std::string& store, const ImageOptions& options) {
  const MountedImage image = paths_in(store);
  TRY(make_image(image.image, options));
  bool folder_made = false;
  Rollback remove([&] {
    ::unlink(image.image.c_str());
    if (folder_made) ::rmdir(image.folder.c_str());
  });
  TRY_ASSIGN(folder_made, make_folder(image.folder, 0700));
  TRY_ASSIGN(MountedImage mounted, mount_present(image));
  remove.dismiss();
  return mounted;
}

}  // namespace

Result<MountedImage> mount_image(const std::string& store, const ImageOptions& options) {
  TRY(check_options(options));
  TRY(check_root());
  TRY_ASSIGN(const bool store_made, make_folder(store, 0755));
  Rollback remove_store([&] {
    if (store_made) ::rmdir(store.c_str());
  });
  TRY_ASSIGN(const std::string path, canonical(store));
  if (has_image(path)) {
    TRY(check_matches(paths_in(path).image, options));
    return mount_present(paths_in(path));
  }
  TRY_ASSIGN(MountedImage mounted, make_and_mount(path, options));
  remove_store.dismiss();
  return mounted;
}

Result<MountedImage> find_image(const std::string& store) {
  TRY(check_root());
  TRY_ASSIGN(const std::string path, canonical(store));
  if (!has_image(path)) return Error(ENOENT, store + " has no image (" + kImageName + "); --image SIZE makes one");
  return mount_present(paths_in(path));
}

bool has_image(const std::string& store) {
  const Result<struct stat> found = stat_at(AT_FDCWD, store + "/" + kImageName, 0);
  return found && S_ISREG(found.value().st_mode);
}

Result<> unmount_image(const MountedImage& image) {
  // EINVAL: it is unmounted already; only the loop device is left.
  if (::umount2(image.folder.c_str(), UMOUNT_NOFOLLOW) != 0 && errno != EINVAL) {
    const Error failed = last_error("unmounting " + image.folder);
    if (failed.errno_value() != EBUSY) return failed;
    std::string holders = joined(holders_of(image.folder));
    if (holders.empty()) holders = "no process that /proc shows; perhaps files opened through a mount that has died";
    return Error(EBUSY, image.folder + " is in use by: " + holders);
  }
  return detach_loop(image.device);
}

}  // namespace ckptfs::io

// An image: a file with an XFS file system in it (reflink on), mounted by loop, on which a store can stand. Uses
// mkfs.xfs, losetup and mount(8)/mount(2); needs root. Not for concurrent use on one store folder.
#pragma once

#include <string>

#include "io/image_file.h"
#include "io/result.h"

namespace ckptfs::io {

struct MountedImage {
  std::string image;    // STORE/image.xfs
  std::string folder;   // STORE/fs, where it is mounted
  std::string device;   // /dev/loopN
  bool direct = false;  // loop with direct I/O
};
// Makes the image where there is none (never overwrites one: a size other than the present one is an error), attaches
// it by loop with direct I/O where the driver takes it, mounts it at store/fs. An image that is mounted there already
// (after a crash) is used again; attached elsewhere: EBUSY, naming where.
Result<MountedImage> mount_image(const std::string& store, const ImageOptions& options);
// As mount_image for an existing image; ENOENT where the folder has none.
Result<MountedImage> find_image(const std::string& store);
bool has_image(const std::string& store);
Result<> unmount_image(const MountedImage& image);

}  // namespace ckptfs::io

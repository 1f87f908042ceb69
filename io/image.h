// An image is a file with an XFS file system in it (reflink on), mounted through a loop device. A store can be placed
// on it. Uses mkfs.xfs, losetup and mount(2); needs root. Not for concurrent use on one store folder.
#pragma once

#include <string>

#include "io/image_file.h"
#include "io/result.h"

namespace ckptfs::io {

struct MountedImage {
  std::string image;    // STORE/image.xfs
  std::string folder;   // STORE/fs, where it is mounted
  std::string device;   // /dev/loopN
  bool direct = false;  // the loop device uses direct I/O
};
// Makes the image if there is none, attaches it to a loop device (with direct I/O where the driver supports it) and
// mounts it at store/fs. An existing image is never overwritten: a different size or sector is an error. An image that
// is still attached or mounted there, after a crash, is used again. If it is mounted elsewhere, the error is EBUSY and
// names the place.
Result<MountedImage> mount_image(const std::string& store, const ImageOptions& options);
// The same for an existing image. Fails with ENOENT if the folder has none.
Result<MountedImage> find_image(const std::string& store);
bool has_image(const std::string& store);
Result<> unmount_image(const MountedImage& image);

}  // namespace ckptfs::io

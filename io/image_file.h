// The file of an image: making it, and reading from its XFS superblock what it is. The mounting is in io/image.cc.
// Stateless; not for concurrent use on one file.
#pragma once

#include <cstdint>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

inline constexpr const char* kImageName = "image.xfs";

struct ImageOptions {
  uint64_t size = 0;      // bytes, at least kMinimumImageSize
  bool sparse = false;    // default: allocated in full, since a sparse image on a full disk breaks XFS
  uint32_t sector = 512;  // logical sector of the loop device and of XFS: 512 or 4096
};
inline constexpr uint64_t kMinimumImageSize = uint64_t{512} << 20;

struct ImageFacts {
  uint64_t size = 0;
  uint32_t sector = 512;   // of the XFS in it
  bool allocated = false;  // all of it has blocks: it was not made sparse
};

// EINVAL, naming it, for a file that holds no XFS.
Result<ImageFacts> inspect_image(const std::string& path);
// Makes the file, allocated in full unless sparse, with a new XFS in it. Built as `path`.new and only then given its
// name, so that a crash never leaves half an image; what such a crash left is removed. EEXIST where the name is taken.
// On an error nothing is left behind.
Result<> make_image(const std::string& path, const ImageOptions& options);

// `size` in whole blocks of 4 KiB, as an image has it.
uint64_t usable_image_size(uint64_t size);
// "8G", "512M", "1T", "4096K" -> bytes. EINVAL, in words, for anything else.
Result<uint64_t> parse_size(const std::string& text);
// "8G", "1536M": the largest unit that gives a whole number.
std::string format_size(uint64_t bytes);

}  // namespace ckptfs::io

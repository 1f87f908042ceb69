// The file of an image: making it, and reading from its XFS superblock what it is. The mounting is in io/image.cc.
// Stateless; not for concurrent use on one file.
#pragma once

#include <cstdint>
#include <string>

#include "io/image.h"

namespace ckptfs::io {

inline constexpr const char* kImageName = "image.xfs";

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
// "8G", "1536M": the largest unit that gives a whole number.
std::string format_size(uint64_t bytes);

}  // namespace ckptfs::io

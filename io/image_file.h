// The file of an image: making it, and reading its properties from its XFS superblock. io/image.cc mounts it.
// Stateless; not for concurrent use on one file.
#pragma once

#include <cstdint>
#include <string>

#include "io/image.h"

namespace ckptfs::io {

inline constexpr const char* kImageName = "image.xfs";

struct ImageFacts {
  uint64_t size = 0;
  uint32_t sector = 512;   // sector size of the XFS in it
  bool allocated = false;  // every byte has blocks: it was not made sparse
};

// Fails with EINVAL, naming the file, if it holds no XFS.
Result<ImageFacts> inspect_image(const std::string& path);
// Makes the file with a new XFS in it, allocated in full unless sparse. It is built as `path`.new and gets its name
// only when it is complete, so a crash never leaves half an image under that name. The next call removes what a crash
// left. Fails with EEXIST if the name is taken. On an error it removes what it made.
Result<> make_image(const std::string& path, const ImageOptions& options);

// Returns `size` rounded down to whole blocks of 4 KiB, which is the size that an image gets.
uint64_t usable_image_size(uint64_t size);
// Formats as "8G" or "1536M", with the largest unit that gives a whole number.
std::string format_size(uint64_t bytes);

}  // namespace ckptfs::io

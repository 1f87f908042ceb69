// The file of an image: making it, and reading its properties from its XFS superblock. io/image.cc mounts it.
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
// "8G", "512M", "1T", "4096K" -> bytes. EINVAL, in words, for anything else.
Result<uint64_t> parse_size(const std::string& text);
// "8G", "1536M": the largest unit that gives a whole number.
std::string format_size(uint64_t bytes);

}  // namespace ckptfs::io

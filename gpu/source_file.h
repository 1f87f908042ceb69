// A file that a load reads. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "meta/formats/manifest.h"

namespace ckptfs::gpu {

// A file, and how its bytes are read.
struct SourceFile {
  std::string path;  // for messages
  int fd = -1;       // owned by the caller
  uint64_t size = 0;
  bool direct = false;          // O_DIRECT is set
  size_t memory_alignment = 1;  // of memory that is read into directly
  // If they are known: as many as the file has chunks; owned by the caller.
  const meta::formats::FileDigests* digests = nullptr;
};

}  // namespace ckptfs::gpu

// Headers of safetensors files: which tensors there are, and where. Nothing but the header is read.
//
// Format: https://github.com/huggingface/safetensors (README, "Format"): 8 bytes of length, little-endian; that much
// JSON; then the tensors, without gaps or overlaps.
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/read_limit.h"
#include "io/result.h"
#include "meta/formats/dtype.h"

namespace ckptfs::meta::formats {

struct SafeTensor {
  std::string name;
  Dtype dtype = Dtype::float32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // in the file
  uint64_t size = 0;    // bytes
};

struct SafetensorsHeader {
  std::vector<SafeTensor> tensors;              // as they lie in the file
  std::map<std::string, std::string> metadata;  // to be written
};

inline constexpr uint64_t kMostSafetensorsHeader = uint64_t{32} << 20;

// Without its metadata. EBADMSG, in words: it is none, or lies about where its tensors are; EFBIG: none has so much.
// ENOTSUP: a type that is not known.
Result<SafetensorsHeader> read_safetensors_header(const io::LimitedFile& file);

// A whole header, with its length before it, of tensors that lie in that order one after the other (their offsets are
// not looked at). Padded with spaces, so that the tensors begin `begin` bytes after a multiple of `alignment` (a
// multiple of 8, as `begin` is: they can be used where they are mapped).
std::string safetensors_header(const SafetensorsHeader& header, uint64_t alignment = 8, uint64_t begin = 0);

}  // namespace ckptfs::meta::formats

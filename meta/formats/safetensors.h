// Reads and writes headers of safetensors files, which list the tensors and their places. Reads nothing else of a file.
//
// Format: https://github.com/huggingface/safetensors (README, "Format"): 8 bytes of length, little-endian; a JSON text
// of that length; then the tensors, without gaps or overlaps.
//
// Thread safety: stateless.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
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
  std::vector<SafeTensor> tensors;              // in the order of the file
  std::map<std::string, std::string> metadata;  // of a header that was read: only what read_...() was to keep
};

// What is read of one file. A header beyond these must not be written.
inline constexpr uint64_t kMostSafetensorsHeader = uint64_t{32} << 20;
inline constexpr size_t kMostTensors = size_t{1} << 17;
inline constexpr size_t kLongestTensorName = 4096;

// Reads the header. Of its metadata it keeps the entries whose keys begin with `keep`; none if that is empty. Fails
// with EBADMSG, in words, if it is no header or places its tensors wrongly; with EFBIG, in words, if it is larger than
// kMostSafetensorsHeader, or has too many tensors, too many or too long kept entries, or too long a name; with ENOTSUP
// if a dtype is unknown.
Result<SafetensorsHeader> read_safetensors_header(const io::LimitedFile& file, std::string_view keep = {});

// Returns a whole header, with its length in front, for tensors that follow one another in this order. Their `offset`s
// are ignored. It is padded with spaces so that the tensors begin `begin` bytes after a multiple of `alignment`. Both
// must be multiples of 8, so that mapped tensors can be used in place.
std::string safetensors_header(const SafetensorsHeader& header, uint64_t alignment = 8, uint64_t begin = 0);

}  // namespace ckptfs::meta::formats
